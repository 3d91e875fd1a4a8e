"""MCP servers: from the three lists of the settings to the agent server's map of name to server."""

from collections.abc import Mapping
from typing import Any

from shared.users.mcp_config import free_name, name_servers

Server = dict[str, Any]

# What `search_api_key` is the key of.
SEARCH_URL = "https://mcp.tavily.com/mcp/"


def map_servers(mcp_config: Mapping[str, Any] | None, search_api_key: str | None) -> dict[str, Server]:
    """The map for `agent_settings`, in the order of the lists.

    Args:
        mcp_config: the lists, see `shared.users.mcp_config`.
        search_api_key: if set, the search engine's server is added.
    """
    servers = {
        name: _process(entry) if transport == "stdio" else _remote(transport, entry)
        for name, transport, entry in name_servers(mcp_config)
    }
    if search_api_key:
        search = {"url": SEARCH_URL, "api_key": search_api_key}
        servers[free_name("tavily", set(servers))] = _remote("http", search)
    return servers


def _process(entry: Mapping[str, Any]) -> Server:
    return {"transport": "stdio", **_given(entry, "command", "args", "env")}


def _remote(transport: str, entry: Mapping[str, Any]) -> Server:
    server = {"transport": transport, **_given(entry, "url", "headers", "timeout")}
    if entry.get("api_key"):
        # In a header: the server's state events quote a URL in clear text.
        server["auth"] = {"strategy": "bearer", "value": entry["api_key"]}
    return server


def _given(entry: Mapping[str, Any], *names: str) -> Server:
    return {name: entry[name] for name in names if entry.get(name) is not None}
