"""MCP servers: from the three lists of the settings to the agent server's map of name to server."""

from collections.abc import Mapping
from typing import Any

Server = dict[str, Any]

# What `search_api_key` is the key of.
SEARCH_URL = "https://mcp.tavily.com/mcp/"


def map_servers(mcp_config: Mapping[str, Any] | None, search_api_key: str | None) -> dict[str, Server]:
    """The map for `agent_settings`, in the order of the lists.

    Args:
        mcp_config: {sse_servers, shttp_servers, stdio_servers}, as section 2.2 of the interface has it.
        search_api_key: if set, the search engine's server is added.
    """
    lists = mcp_config or {}
    servers: dict[str, Server] = {}
    for entry in lists.get("stdio_servers") or ():
        servers[_free_name(entry.get("name") or "stdio", servers)] = _process(entry)
    for entry in lists.get("sse_servers") or ():
        servers[_free_name("sse", servers)] = _remote("sse", entry)
    for entry in lists.get("shttp_servers") or ():
        servers[_free_name("shttp", servers)] = _remote("http", entry)
    if search_api_key:
        search = {"url": SEARCH_URL, "api_key": search_api_key}
        servers[_free_name("tavily", servers)] = _remote("http", search)
    return servers


def _process(entry: Mapping[str, Any]) -> Server:
    return {"transport": "stdio", **_given(entry, "command", "args", "env")}


def _remote(transport: str, entry: Mapping[str, Any]) -> Server:
    server = {"transport": transport, **_given(entry, "url", "timeout")}
    if entry.get("api_key"):
        # In a header: the server's state events quote a URL in clear text.
        server["auth"] = {"strategy": "bearer", "value": entry["api_key"]}
    return server


def _given(entry: Mapping[str, Any], *names: str) -> Server:
    return {name: entry[name] for name in names if entry.get(name) is not None}


def _free_name(name: str, taken: Mapping[str, Any]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free
