"""The client of a service's HTTP API, and the options that say which service a command uses."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from shared.cli.exits import STATUSES, TIMEOUT
from shared.cli.options import with_options
from shared.cli.output import NAME
from shared.cli.remote import contexts
from shared.cli.remote.contexts import ServiceContext
from shared.errors import Forbidden, Invalid, NotFound, Unauthenticated, Unavailable, WorkspaceError

if TYPE_CHECKING:
    import httpx

# Longer than a request may wait for its operation, which is 60 s.
READ_SECONDS = 90.0
CONNECT_SECONDS, MAX_WAIT_SECONDS = 30.0, 60
# A response may come from a sandbox.
MAX_ANSWER_BYTES = 64 * 1024 * 1024
PAGE = 100
NO_SERVICE = "does not respond like Agent Workspace: check the address"


class Missing(NotFound):
    """The service has no such thing, or it is another user's."""

    def __init__(self, text: str) -> None:
        WorkspaceError.__init__(self, text)


class TimedOut(WorkspaceError):
    """What was awaited did not happen in time."""


STATUSES[TimedOut] = TIMEOUT
# The errors of other statuses than 401.
ERRORS: dict[int, type[WorkspaceError]] = {403: Forbidden, 404: Missing, 504: TimedOut}
ERRORS |= dict.fromkeys((429, 502, 503), Unavailable)


class RemoteService:
    """A service, used with one user's key."""

    def __init__(self, http: "httpx.Client") -> None:
        self._http = http

    def get(self, path: str, **query: Any) -> Any:
        """The response to a GET.

        Raises:
            WorkspaceError: the service cannot be reached, or responds with an error. The other methods raise it, too.
        """
        return self.request("GET", path, query=query)

    def post(self, path: str, body: Any = None, **query: Any) -> Any:
        """The response to a POST."""
        return self.request("POST", path, body=body, query=query)

    def delete(self, path: str, **query: Any) -> Any:
        """The response to a DELETE."""
        return self.request("DELETE", path, query=query)

    def request(self, method: str, path: str, **options: Any) -> Any:
        """The JSON of the response; None for an empty one. The options are those of `stream`."""
        with self.stream(method, path, **options) as response:
            text = _read(response)
        return self._parse(text) if text.strip() else None

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float = READ_SECONDS,
    ) -> "Iterator[httpx.Response]":
        """A response whose body the caller reads.

        Args:
            query: values that are None are left out.
            seconds: max time without a byte.
        """
        chosen = {name: value for name, value in (query or {}).items() if value is not None}
        timeout = (CONNECT_SECONDS, seconds, CONNECT_SECONDS, CONNECT_SECONDS)  # connect, read, write, pool
        request = self._http.stream(
            method, path, params=chosen, json=body, headers=dict(headers or {}), timeout=timeout
        )
        with self._translated(), request as response:
            if not response.is_success:
                raise _error_of(response, _read(response))
            yield response

    def settle(self, method: str, path: str, seconds: float, **query: Any) -> Any:
        """Send a command that completes later, wait for it for at most a minute, and return the response.

        Raises:
            WorkspaceError: another request has changed the desired state during the wait.
        """
        wait = int(min(seconds, MAX_WAIT_SECONDS))
        with self.stream(method, path, query=query | {"wait": wait}) as response:
            text = _read(response)
            if response.headers.get("Operation-Settled") == "superseded":
                raise WorkspaceError("another request has changed the sandbox's desired state during the wait")
        return self._parse(text)

    def post_form(self, path: str, fields: Mapping[str, str]) -> Any:
        """The JSON of the response to a form, even if it is an OAuth error (a 400)."""
        with self._translated(), self._http.stream("POST", path, data=dict(fields)) as response:
            text = _read(response)
            if not response.is_success and response.status_code != 400:
                raise _error_of(response, text)
        return self._parse(text)

    def _parse(self, text: bytes) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            raise Unavailable(f"{self._http.base_url} {NO_SERVICE}") from None

    @contextmanager
    def _translated(self) -> Iterator[None]:
        import httpx

        from shared.agent_server.untrusted_http import HTTP_ERRORS

        try:
            yield
        except httpx.TimeoutException:
            raise TimedOut(f"{self._http.base_url} did not respond in time") from None
        except HTTP_ERRORS as error:
            raise Unavailable(f"cannot reach {self._http.base_url}: {str(error) or type(error).__name__}") from None

    def list_all(self, path: str, limit: int, **query: Any) -> list[dict[str, Any]]:
        """At most `limit` items of a list, read page by page."""
        return list(islice(self.read_items(path, limit=min(PAGE, limit), **query), limit))

    def read_items(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        """All items of a list. A page is requested when the items of the one before have been used."""
        page_id = None
        while True:
            page = self.get(path, **{"limit": PAGE, **query, "page_id": page_id})
            yield from page["items"]
            if (page_id := page["next_page_id"]) is None:
                return


_CHOICE: ContextVar[tuple[str | None, str | None, str | None]] = ContextVar("choice", default=(None, None, None))


@contextmanager
def _choosing(*, called: typer.Context, context: str | None, url: str | None, key: str | None) -> Iterator[None]:
    if url and context:
        context = _choose_context(called, context)
    token = _CHOICE.set((context, url, key))
    try:
        yield
    finally:
        _CHOICE.reset(token)


def _choose_context(called: typer.Context, context: str) -> str | None:
    """The context, or None if a URL takes precedence: an option takes precedence over the environment."""
    is_option = {name: _is_option(called, name) for name in ("context", "url")}
    if all(is_option.values()):
        raise typer.BadParameter("--context and --url are mutually exclusive")
    return None if is_option["url"] else context


def _is_option(called: typer.Context, name: str) -> bool:
    source = called.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


# For commands that use a service.
remote = with_options(
    {
        "called": (typer.Context, None),
        "context": (
            Annotated[
                str | None, typer.Option("--context", envvar="AGENT_WORKSPACE_CONTEXT", help="The context to use.")
            ],
            None,
        ),
        "url": (
            Annotated[
                str | None,
                typer.Option("--url", envvar="AGENT_WORKSPACE_URL", help="The service to use; needs a key."),
            ],
            None,
        ),
        # From the environment: a command line is visible to every user of the machine.
        "key": (Annotated[str | None, typer.Option("--key", envvar="AGENT_WORKSPACE_KEY", hidden=True)], None),
    },
    _choosing,
)


def chosen_context() -> ServiceContext:
    """The service that the options, the environment or the contexts' file names, in this order.

    Raises:
        Unauthenticated: none is named, or a URL without a key.
    """
    name, url, key = _CHOICE.get()
    if url and not name:
        if not key:
            raise Unauthenticated("AGENT_WORKSPACE_KEY is not set: a service given by URL needs a key")
        return ServiceContext(contexts.check_url(url), key)
    return contexts.load().get(name)


def chosen_name() -> str | None:
    """The name of the context that the options, the environment or the file choose; None if it has none."""
    name, url, _ = _CHOICE.get()
    return name or (None if url else contexts.load().current)


@contextmanager
def opened() -> Iterator[RemoteService]:
    """The service that the command uses."""
    context = chosen_context()
    with open_http(context.url, context.key) as http:
        yield RemoteService(http)


def open_http(url: str, key: str | None = None) -> "httpx.Client":
    """A connection to a service."""
    import httpx

    headers = {"User-Agent": NAME} | ({"Authorization": f"Bearer {key}"} if key else {})
    return httpx.Client(base_url=url, headers=headers)


def read_id(text: str) -> str:
    """An id in the form that paths have.

    Raises:
        Invalid: it is not an id.
    """
    try:
        return UUID(text).hex
    except ValueError:
        raise Invalid(f"{text[:80]!r} is not an id: use 32 hexadecimal digits, as lists print them") from None


def without_key(shown: dict[str, Any]) -> dict[str, Any]:
    """A sandbox or a conversation as it is printed: without its session key."""
    return {name: value for name, value in shown.items() if name != "session_api_key"}


def failure(what: str, shown: Mapping[str, Any]) -> WorkspaceError:
    """The error of something that has failed with a reason."""
    advice = f"what to do: `{NAME} explain {shown['reason']}`"
    return WorkspaceError(f"{what}, {shown['reason']}: {shown['detail']} ({advice})")


def _read(response: "httpx.Response") -> bytes:
    body = bytearray()
    for part in response.iter_bytes():
        body += part
        if len(body) > MAX_ANSWER_BYTES:
            raise Unavailable(f"the response is longer than {MAX_ANSWER_BYTES // 1024**2} MiB")
    return bytes(body)


def _error_of(response: "httpx.Response", body: bytes) -> WorkspaceError:
    text = _detail(body) or f"status {response.status_code}"
    if response.has_redirect_location:
        # Not followed: the key is for the host that the user named.
        place = response.url.join(response.headers["Location"])
        target = f"{place.scheme}://{place.netloc.decode()}"
        return Unavailable(f"{response.url.host} redirects to {target}: log in with that URL")
    if response.status_code == 401:
        return Unauthenticated(f"the service does not accept your key: log in again with `{NAME} login`")
    return ERRORS.get(response.status_code, WorkspaceError)(text)


def _detail(body: bytes) -> str:
    try:
        detail = json.loads(body)["detail"]
    except (ValueError, KeyError, TypeError):
        return ""
    if isinstance(detail, list):
        return "; ".join(f"{'.'.join(map(str, entry.get('loc', ())))}: {entry.get('msg')}" for entry in detail)
    return str(detail)
