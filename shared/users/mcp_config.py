"""MCP servers in a user's settings: the three stored lists, V1's map of names, and masks in place of secrets.

A list entry is V0's (wire contract, section 5). A server that came from a map also has V1's other fields.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shared.errors import Invalid

# Shown in place of a secret. In a request it means the stored secret; the mask itself is never stored.
MASK = "**********"

McpConfig = dict[str, Any]
Server = dict[str, Any]
# The limits of each list, and of a server's headers and environment.
MAX_SERVERS = 100
MAX_HEADERS = 50
MAX_VARIABLES = 100

# The parts of a URL that may be credentials: the user info before the @, and parameters with such names.
USER_INFO = re.compile(r"(?<=//)[^/?#]*(?=@)")
SECRET_NAME = re.compile("auth|code|cred|jwt|key|pass|secret|session|sig|token", re.IGNORECASE)
DELIMITER = re.compile("([&#;])")
# Each list, the transport of its servers, and the default name.
LISTS = (("stdio_servers", "stdio", "stdio"), ("sse_servers", "sse", "sse"), ("shttp_servers", "http", "shttp"))
# Fields that V0's entries do not have: of every server, of a server with a URL, and of a command. Timeouts: in seconds.
OPTIONS = ("enabled", "description", "icon")
REMOTE_OPTIONS = ("headers", "sse_read_timeout", "keep_alive", *OPTIONS)
PROCESS_OPTIONS = ("cwd", "timeout", *OPTIONS)


class Named(NamedTuple):
    """A server with its name in V1's map."""

    name: str
    transport: str
    entry: Server


def name_servers(config: Mapping[str, Any] | None) -> Iterator[Named]:
    """The servers in the order of the lists, each under a unique name."""
    taken: set[str] = set()
    for list_name, transport, default in LISTS:
        for entry in _listed(config, list_name):
            name = free_name(entry.get("name") or default, taken)
            taken.add(name)
            yield Named(name, transport, entry)


def free_name(name: str, taken: set[str]) -> str:
    """The name, followed by a number if it is taken."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free


def enabled_servers(config: Mapping[str, Any] | None) -> McpConfig | None:
    """The lists without the servers that are switched off."""
    if config is None:
        return None
    return {
        name: [server for server in servers if server.get("enabled") is not False] for name, servers in config.items()
    }


def to_map(config: Mapping[str, Any] | None) -> dict[str, Server]:
    """V1's map of names to servers, with a key itself as a server's `auth`."""
    return {server.name: _mapped(server) for server in name_servers(config)}


def with_credentials(servers: Mapping[str, Server]) -> dict[str, Server]:
    """The map with credentials in place of keys (the agent SDK's `BearerMCPAuth`)."""
    return {
        name: server | {"auth": {"strategy": "bearer", "value": server["auth"]}} if "auth" in server else server
        for name, server in servers.items()
    }


def to_lists(servers: Any) -> McpConfig:
    """Convert V1's map to the lists. The caller checks the entries.

    Raises:
        ValueError: the value is not a map of servers. The error quotes no value.
    """
    if isinstance(servers, dict) and set(servers) == {"mcpServers"}:
        servers = servers["mcpServers"]
    if not isinstance(servers, dict) or not all(isinstance(server, dict) for server in servers.values()):
        raise ValueError("mcp_config is a map of names to servers")
    lists: McpConfig = {name: [] for name, _, _ in LISTS}
    for name, server in servers.items():
        if "command" in server:
            lists["stdio_servers"].append(_listed_process(server) | {"name": name})
        else:
            lists[_remote_list(server)].append(_listed_remote(server) | {"name": name})
    return lists


def read_auth(auth: Any) -> Any:
    """The key in a server's `auth`, which is V1's credential or the key itself; None without one.

    Raises:
        ValueError: it is no bearer token. The error quotes no value.
    """
    if isinstance(auth, dict) and auth.get("strategy") == "bearer":
        auth = auth.get("value")
    if auth == "oauth" or isinstance(auth, dict):
        raise ValueError("a server's auth is a bearer token: other kinds are not supported")
    return auth


def mask_servers(config: Mapping[str, Any]) -> McpConfig:
    """The MCP servers with masks in place of keys, header values, environment values and credentials in URLs."""
    return {
        "sse_servers": [_mask_remote(server) for server in _listed(config, "sse_servers")],
        "stdio_servers": [_mask_process(server) for server in _listed(config, "stdio_servers")],
        "shttp_servers": [_mask_remote(server) for server in _listed(config, "shttp_servers")],
    }


def unmask_servers(config: Mapping[str, Any], stored: Mapping[str, Any] | None) -> McpConfig:
    """The MCP servers with stored values in place of masks; stored servers are found by URL or by name.

    A field that V0's entries do not have stays as stored if an entry does not name it, and is removed if it is null.

    Raises:
        Invalid: a mask has no stored value.
    """
    sse, shttp = _by_url(stored, "sse_servers"), _by_url(stored, "shttp_servers")
    processes = {server["name"]: server for server in _listed(stored, "stdio_servers")}
    return {
        # A server may have moved from one list to the other.
        "sse_servers": [_unmask_remote(server, shttp | sse) for server in _listed(config, "sse_servers")],
        "stdio_servers": [_unmask_process(server, processes) for server in _listed(config, "stdio_servers")],
        "shttp_servers": [_unmask_remote(server, sse | shttp) for server in _listed(config, "shttp_servers")],
    }


def secrets_of_servers(config: Mapping[str, Any] | None) -> Iterator[str]:
    """The secrets of the servers in clear: keys, header values, environment values and credentials in URLs."""
    for _, _, entry in name_servers(config):
        yield from (value for value in (entry.get("api_key"), *(entry.get("headers") or {}).values()) if value)
        yield from (entry.get("env") or {}).values()
        yield from secrets_of_url(entry.get("url") or "")


def secrets_of_url(url: str) -> Iterator[str]:
    """The possible credentials in a URL."""
    for found in USER_INFO.finditer(url):
        user, _, password = found.group().partition(":")
        yield password or user
    yield from (value for _, value in _split_parameters(url) if value)


def without_authorization(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers without the one that a server's key would be sent in: a server has one authorization."""
    return {name: value for name, value in headers.items() if name.lower() != "authorization"}


def mask_reported(servers: Mapping[Any, Any]) -> dict[Any, Any]:
    """An agent server's map of names to servers with credentials in URLs masked: it masks only other secrets itself."""
    return {
        name: server | {"url": mask_url(server["url"])}
        if isinstance(server, dict) and isinstance(server.get("url"), str)
        else server
        for name, server in servers.items()
    }


def mask_url(url: str) -> str:
    """The URL with its possible credentials masked."""
    parts = _split_parameters(USER_INFO.sub(MASK, url))
    return "".join(shown if value is None else shown + MASK for shown, value in parts)


def unmask_url(url: str, stored: str | None) -> str:
    """The stored URL if the URL is what is shown of it, else the URL itself.

    Raises:
        Invalid: the URL has a mask, and is not what is shown of the stored one.
    """
    if stored and url == mask_url(stored):
        return stored
    if MASK in url:
        raise Invalid("a mask in a URL has no stored value: send the whole URL")
    return url


def _split_parameters(url: str) -> Iterator[tuple[str, str | None]]:
    """The parts of a URL, each up to the value that may be a credential, and that value.

    Sandboxes choose URLs, too, so the cost must be linear: each character is examined only a few times.
    """
    for number, part in enumerate(DELIMITER.split(url)):
        yield _split_parameter(part, is_first=number == 0)


def _split_parameter(part: str, *, is_first: bool) -> tuple[str, str | None]:
    pieces = part.split("=")
    for number, piece in enumerate(pieces[:-1], 1):
        # The first part begins with the address, and a value may have a question mark.
        name = piece if number == 1 and not is_first else piece.partition("?")[2]
        if SECRET_NAME.search(name):
            return "=".join(pieces[:number]) + "=", "=".join(pieces[number:])
    return part, None


def _listed(config: Mapping[str, Any] | None, name: str) -> Sequence[Server]:
    return (config or {}).get(name) or ()


def _pick(entry: Mapping[str, Any], *names: str) -> Server:
    return {name: entry[name] for name in names if entry.get(name) is not None}


def _mapped(server: Named) -> Server:
    entry = server.entry
    if server.transport == "stdio":
        return {"transport": "stdio", **_pick(entry, "command", "args", "env", *PROCESS_OPTIONS)}
    shown = {"transport": server.transport, **_pick(entry, "url", "timeout", *REMOTE_OPTIONS)}
    return shown | ({"auth": entry["api_key"]} if entry.get("api_key") else {})


def _remote_list(server: Server) -> str:
    transport = server.get("transport")
    if transport not in (None, "sse", "http", "streamable-http"):
        raise ValueError("a server's transport is stdio, sse, http or streamable-http")
    # Without a transport, the same guess as in V1's own client.
    guessed = "sse" if re.search(r"/sse(?:[/?#]|$)", str(server.get("url"))) else "http"
    return "sse_servers" if (transport or guessed) == "sse" else "shttp_servers"


def _listed_remote(server: Server) -> Server:
    auth = read_auth(server.get("auth"))
    # A field that the map does not have becomes null, so that a server from a map does not inherit a stored value.
    entry = _pick(server, "url", "timeout") | {name: server.get(name) for name in REMOTE_OPTIONS}
    return entry | ({"api_key": auth} if auth else {})


def _listed_process(server: Server) -> Server:
    return _pick(server, "command", "args", "env") | {name: server.get(name) for name in PROCESS_OPTIONS}


def _by_url(config: Mapping[str, Any] | None, name: str) -> dict[str, Server]:
    return {mask_url(server["url"]): server for server in _listed(config, name)}


def _mask_remote(server: Server) -> Server:
    masked = server | {"url": mask_url(server["url"]), "api_key": MASK if server.get("api_key") else None}
    return masked | ({"headers": dict.fromkeys(server["headers"], MASK)} if server.get("headers") else {})


def _mask_process(server: Server) -> Server:
    return server | {"env": dict.fromkeys(server.get("env") or {}, MASK)}


def _unmask_remote(server: Server, stored: Mapping[str, Server]) -> Server:
    url, key = server["url"], server.get("api_key")
    before = stored.get(mask_url(url), {})
    if MASK in url and url == mask_url(url):
        url = before.get("url", url)
    if key == MASK:
        key = before.get("api_key", key)
    merged = _inherit(server, before, ("name", *REMOTE_OPTIONS))
    headers = _unmask(merged.pop("headers", None), before.get("headers"))
    if key and "headers" not in server:
        headers = without_authorization(headers)  # V0's clients know no headers: a key replaces a stored one
    if MASK in url or key == MASK or MASK in headers.values():
        raise Invalid("mcp_config: a mask has no stored secret of a server with that URL")
    return merged | {"url": url, "api_key": key or None} | ({"headers": headers} if headers else {})


def _unmask_process(server: Server, stored: Mapping[str, Server]) -> Server:
    before = stored.get(server["name"], {})
    env = _unmask(server.get("env"), before.get("env"))
    if MASK in env.values():
        raise Invalid(f"mcp_config: a mask has no stored variable of {server['name']!r}")
    return _inherit(server, before, PROCESS_OPTIONS) | {"env": env}


def _inherit(server: Server, before: Server, names: Sequence[str]) -> Server:
    # V0 clients return a server without the fields that came from a map.
    merged = _pick(before, *names) | server
    return {name: value for name, value in merged.items() if name not in names or value not in (None, {})}


def _unmask(sent: Mapping[str, str] | None, stored: Mapping[str, str] | None) -> dict[str, str]:
    """The values, with stored ones in place of masks where they exist."""
    before = stored or {}
    return {name: before.get(name, value) if value == MASK else value for name, value in (sent or {}).items()}
