"""MCP servers on the wire (wire contract, section 5)."""

import re
import shlex
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from api.schemas.v1.fields import CONTROL, MAX_TEXT_LENGTH, Key, Line, Strict, Text, Value, check_names
from shared.users.mcp_config import MAX_HEADERS, MAX_SERVERS, MAX_VARIABLES, mask_url, read_auth, to_lists

URL_SCHEMES = ("http", "https", "ws", "wss")
PROCESS_NAME = re.compile(r"[A-Za-z0-9_-]+")
HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
# Max characters of all texts of a configuration that are split: this takes the event loop up to 0.8 µs for each.
MAX_SPLIT_LENGTH = 50_000


def _check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in URL_SCHEMES and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or " " in url or CONTROL.search(url):
        raise ValueError(f"a server's URL must have a host and one of the schemes {', '.join(URL_SCHEMES)}")
    return url


def _limit_split(servers: Any) -> Any:
    entries = servers.values() if isinstance(servers, dict) else servers if isinstance(servers, list) else ()
    values = [entry.get(name) for entry in entries if isinstance(entry, dict) for name in ("args", "env")]
    if sum(len(text) for text in values if isinstance(text, str)) > MAX_SPLIT_LENGTH:
        raise ValueError(
            f"all args and env that are sent as texts have at most {MAX_SPLIT_LENGTH} characters together: send lists "
            "and maps instead"
        )
    return servers


def _split_args(args: Any) -> Any:
    if not isinstance(args, str) or len(args) > MAX_TEXT_LENGTH:
        return args
    try:
        return shlex.split(args)
    except ValueError:
        raise ValueError("can't split the arguments into words as a shell does") from None


def _split_env(env: Any) -> Any:
    if isinstance(env, str):
        pairs = [pair.partition("=") for pair in env.split(",") if pair.strip()]
        if not all(sign for _, sign, _ in pairs):
            raise ValueError("an environment in one text must be NAME=value pairs, separated by commas")
        env = {name.strip(): value.strip() for name, _, value in pairs}
    return check_names(env)


def _check_headers(headers: Any) -> Any:
    # Not in the keys' type: there, the location of the error would repeat the name, which may be a value.
    if isinstance(headers, dict) and not all(isinstance(name, str) and HEADER.fullmatch(name) for name in headers):
        raise ValueError("not a header's name")
    return headers


def _shorten(number: float) -> float:
    return int(number) if number.is_integer() else number


def _check_commands(servers: dict[str, "ServerChanges | None"]) -> dict[str, "ServerChanges | None"]:
    if any(server and server.command and not PROCESS_NAME.fullmatch(name) for name, server in servers.items()):
        raise ValueError("the name of a command must be letters, digits, '_' and '-'")
    return servers


HeaderNames = BeforeValidator(_check_headers)
Headers = Annotated[dict[str, Key], Field(max_length=MAX_HEADERS), HeaderNames]
# Null removes a header.
HeaderChanges = Annotated[dict[str, Key | None], Field(max_length=MAX_HEADERS), HeaderNames]
Url = Annotated[str, Field(max_length=2048), AfterValidator(_check_url)]
Name = Annotated[Line, Field(min_length=1, max_length=256)]
Command = Annotated[str, Field(max_length=1024, pattern=r"^[^\s\x00-\x1f\x7f]+$")]
Arguments = Annotated[list[Text], Field(max_length=100), BeforeValidator(_split_args)]
Variables = Annotated[dict[str, Value], Field(max_length=MAX_VARIABLES), BeforeValidator(_split_env)]
VariableChanges = Annotated[dict[str, Value | None], Field(max_length=MAX_VARIABLES), BeforeValidator(_split_env)]
Seconds = Annotated[float, Field(gt=0, le=3600), AfterValidator(_shorten)]


class ServerOptions(Strict):
    """V1's further fields of an MCP server. A server that is not `enabled` stays stored, and no agent gets it."""

    enabled: bool | None = None
    description: Text | None = None
    icon: Text | None = None
    timeout: Seconds | None = None


class SseServer(ServerOptions):
    """An MCP server with a URL; all but `url` and `api_key` is V1's. Timeouts are in seconds."""

    url: Url
    api_key: Key | None = None
    name: Name | None = None
    headers: Headers | None = None
    sse_read_timeout: Seconds | None = None
    keep_alive: bool | None = None


class ShttpServer(SseServer):
    """An MCP server with a URL and streamable HTTP."""


class StdioServer(ServerOptions):
    """An MCP server that runs as a command in the sandbox, in the directory `cwd`."""

    name: Annotated[str, Field(max_length=256, pattern=rf"^{PROCESS_NAME.pattern}$")]
    command: Command
    args: Arguments = Field(default_factory=list)
    env: Variables = Field(default_factory=dict)
    cwd: Line | None = None


class ServerChanges(ServerOptions):
    """Changes of one MCP server. A field that is not sent stays, and null removes one, in headers and `env` too.

    Null in place of all headers removes `auth`, too, unless it is sent.
    """

    transport: Literal["stdio", "sse", "http", "streamable-http"] | None = None
    url: Url | None = None
    auth: Annotated[Key | None, BeforeValidator(read_auth)] = None
    headers: HeaderChanges | None = None
    sse_read_timeout: Seconds | None = None
    keep_alive: bool | None = None
    command: Command | None = None
    args: Arguments | None = None
    env: VariableChanges | None = None
    cwd: Line | None = None


Remote = TypeVar("Remote", bound=SseServer)


def _unique_urls(servers: list[Remote]) -> list[Remote]:
    # Credentials are ignored, so that a masked URL identifies one server.
    _check_unique((mask_url(server.url) for server in servers), "URL")
    return servers


def _unique_names(servers: list[StdioServer]) -> list[StdioServer]:
    _check_unique((server.name for server in servers), "name")
    return servers


def _check_unique(identities: Iterable[str], what: str) -> None:
    listed = list(identities)
    if len(set(listed)) != len(listed):
        raise ValueError(f"two servers have the same {what}")


def _read_url(server: Any) -> Any:
    # V0's web UI sends a server without a key as its URL alone.
    return {"url": server} if isinstance(server, str) else server


Sse = Annotated[SseServer, BeforeValidator(_read_url)]
Shttp = Annotated[ShttpServer, BeforeValidator(_read_url)]


class McpConfig(Strict):
    """The MCP servers; they replace all stored ones, except for masked secrets and V1's fields that are not sent."""

    sse_servers: Annotated[list[Sse], Field(max_length=MAX_SERVERS), AfterValidator(_unique_urls)] = Field(
        default_factory=list
    )
    stdio_servers: Annotated[
        list[StdioServer], Field(max_length=MAX_SERVERS), BeforeValidator(_limit_split), AfterValidator(_unique_names)
    ] = Field(default_factory=list)
    shttp_servers: Annotated[list[Shttp], Field(max_length=MAX_SERVERS), AfterValidator(_unique_urls)] = Field(
        default_factory=list
    )


class McpAdditions(McpConfig):
    """The servers of a map under the flat name: they are added to the stored ones."""


Changes = Annotated[dict[Name, ServerChanges | None], BeforeValidator(_limit_split), AfterValidator(_check_commands)]


class McpPatch(RootModel[Changes]):
    """V1's map of names to changes of MCP servers: a merge patch (RFC 7386). Null removes a server."""

    model_config = ConfigDict(strict=True, hide_input_in_errors=True)


class RemoteServerInfo(BaseModel):
    """An MCP server with a URL, with its secrets masked."""

    model_config = ConfigDict(extra="allow")  # V1's further fields, if any

    url: str
    api_key: str | None = None


class ShttpServerInfo(RemoteServerInfo):
    """An MCP server with a URL and streamable HTTP; `timeout` is in seconds."""

    timeout: int | float | None = None


class StdioServerInfo(BaseModel):
    """An MCP server that runs as a command, with the values of its environment masked."""

    model_config = ConfigDict(extra="allow")  # V1's further fields, if any

    name: str
    command: str
    args: list[str] = []
    env: dict[str, str] = {}


def _either_shape(servers: Any, check: ValidatorFunctionWrapHandler) -> Any:
    # Without this, a map would pass as three empty lists: the check ignores other names.
    if not isinstance(servers, dict) or not servers:
        return check(servers)
    named = [name for name in servers if name not in McpConfig.model_fields]
    if len(named) == len(servers):
        return McpAdditions.model_construct(**dict(check(to_lists(servers))))
    if any(isinstance(servers[name], dict) for name in named):
        raise ValueError("mcp_config must be three lists, or a map of names to servers, not both")
    return check(servers)


def _changes(servers: Any, check: ValidatorFunctionWrapHandler) -> Any:
    # Older clients send all servers, below this name. An empty map means none: an empty patch would need no request.
    if servers == {} or (isinstance(servers, dict) and set(servers) == {"mcpServers"}):
        return McpConfig.model_validate(to_lists(servers))
    return check(servers)


# V1's map of changes, or all servers; and under the flat name, a map of servers or the lists.
McpChanges = Annotated[McpPatch, WrapValidator(_changes)]
McpEitherShape = Annotated[McpConfig, WrapValidator(_either_shape)]


class McpConfigInfo(BaseModel):
    """The MCP servers, with secrets masked."""

    sse_servers: list[RemoteServerInfo]
    stdio_servers: list[StdioServerInfo]
    shttp_servers: list[ShttpServerInfo]
