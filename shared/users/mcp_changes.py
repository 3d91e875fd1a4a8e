"""Changes of a user's MCP servers: all of them, more of them, or V1's merge patch."""

from collections.abc import Mapping
from typing import Any

from shared.errors import Invalid
from shared.users.mcp_config import (
    LISTS,
    MASK,
    MAX_HEADERS,
    MAX_SERVERS,
    MAX_VARIABLES,
    McpConfig,
    Server,
    mask_url,
    name_servers,
    to_lists,
    to_map,
    unmask_servers,
    without_authorization,
)

# The fields that a server loses when it becomes a command, and when a command becomes a server with a URL.
REMOTE_FIELDS = frozenset({"transport", "url", "auth", "headers", "sse_read_timeout", "keep_alive"})
PROCESS_FIELDS = frozenset({"transport", "command", "args", "env", "cwd"})


class Additions(McpConfig):
    """Servers to add to the stored ones: V1's map in the shape of the lists."""


class Patch(dict[str, Any]):
    """Changed fields of servers by their names in V1's map: a merge patch (RFC 7386), in which null removes."""


def change_servers(change: McpConfig, stored: Mapping[str, Any] | None) -> McpConfig:
    """The servers after a change, with stored values in place of masks.

    Args:
        change: lists, which replace the stored ones; or `Additions`, or a `Patch`.
        stored: the servers before the change.

    Raises:
        Invalid: a mask has no stored value, a server is incomplete, two have one URL, or a limit is exceeded.
    """
    sent = _patch(change, stored) if isinstance(change, Patch) else change
    servers = unmask_servers(sent, stored)
    if isinstance(change, Additions):
        servers = _add(servers, stored)
    _check(servers, stored)
    return servers


def _add(added: McpConfig, stored: Mapping[str, Any] | None) -> McpConfig:
    """The stored servers with the added ones. An added server replaces those with its name or its URL."""
    new = list(name_servers(added))
    taken = {server.name for server in new} | {mask_url(server.entry["url"]) for server in new if "url" in server.entry}
    kept = [old for old in name_servers(stored) if taken.isdisjoint((old.name, mask_url(old.entry.get("url") or "")))]
    return {
        name: [server.entry for server in (*kept, *new) if server.transport == transport]
        for name, transport, _ in LISTS
    }


def _patch(patch: Patch, stored: Mapping[str, Any] | None) -> McpConfig:
    """The lists after the patch. A mask without a stored value stays."""
    servers = to_map(stored)
    for name, changes in patch.items():
        if changes is None:
            servers.pop(name, None)
        else:
            servers[name] = _merge(_keep(servers.get(name, {}), changes), changes)
            _check_complete(name, servers[name])
    try:
        return to_lists(servers)
    except ValueError as error:
        raise Invalid(f"mcp_config: {error}") from None


def _keep(before: Server, changes: Server) -> Server:
    """The stored fields that the changes leave valid: a server is a command or has a URL, and has one authorization.

    Null in place of the headers removes the authorization, too: Agent Canvas sends it for a server without one.
    """
    lost: frozenset[str] = frozenset()
    if changes.get("command") and "url" in before:
        lost = REMOTE_FIELDS
    elif changes.get("url") and "command" in before:
        lost = PROCESS_FIELDS
    headers = dict(before.get("headers") or {})
    if changes.get("auth"):
        headers = without_authorization(headers)
    elif _replaces_authorization(changes):
        lost |= {"auth"}
    return {name: value for name, value in (before | {"headers": headers}).items() if name not in lost}


def _replaces_authorization(changes: Server) -> bool:
    headers = changes.get("headers", {})
    return headers is None or _authorizes({name: value for name, value in headers.items() if value})


def _authorizes(headers: Mapping[str, Any]) -> bool:
    return len(without_authorization(headers)) < len(headers)


def _merge(before: Server, changes: Mapping[str, Any]) -> Server:
    merged = dict(before)
    for name, value in changes.items():
        known = merged.get(name)
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            merged[name] = _merge(known if isinstance(known, dict) else {}, value)
        elif not (isinstance(known, str) and value in (MASK, mask_url(known))):
            merged[name] = value
    return merged


def _check_complete(name: str, server: Server) -> None:
    if not (server.get("command") or server.get("url")):
        raise Invalid(f"mcp_config: the server {name!r} has neither a URL nor a command")


def _authorizes_twice(server: Server) -> bool:
    return bool(server.get("api_key")) and _authorizes(server.get("headers") or {})


def _check(servers: McpConfig, stored: Mapping[str, Any] | None) -> None:
    # Earlier versions stored such servers. They must not prevent a change of another one.
    known = {server.entry["url"] for server in name_servers(stored) if _authorizes_twice(server.entry)}
    for listed in servers.values():
        if len(listed) > MAX_SERVERS:
            raise Invalid(f"mcp_config: at most {MAX_SERVERS} servers of a kind, with those that are stored")
        urls = [mask_url(server["url"]) for server in listed if "url" in server]
        if len(set(urls)) != len(urls):
            raise Invalid("mcp_config: two servers have the same URL")
        if any(_authorizes_twice(server) and server["url"] not in known for server in listed):
            raise Invalid("mcp_config: a server has one authorization, a key or an Authorization header")
        if any(len(server.get("headers") or ()) > MAX_HEADERS for server in listed):
            raise Invalid(f"mcp_config: at most {MAX_HEADERS} headers of a server, with those that are stored")
        if any(len(server.get("env") or ()) > MAX_VARIABLES for server in listed):
            raise Invalid(f"mcp_config: at most {MAX_VARIABLES} variables of a server, with those that are stored")
