"""HTTP requests to one agent server, with errors translated and response shapes checked. Bodies are never logged."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import httpx

from shared.agent_server.errors import AgentServerRefused, AgentServerUnreachable, WrongServer
from shared.agent_server.limits import MAX_BYTES
from shared.agent_server.shapes import AnyPage, Shape, read_shape
from shared.observability import failpoints
from shared.redaction import Redact, redacting
from worker.agent_server.exchange import CONTROL_SECONDS, exchange

# One document is parsed at a time: the limits bound the memory for one hostile document.
_parsing = threading.Lock()


class AgentServerConnection:
    """Base of `worker.agent_server.client.AgentServer`.

    Args:
        base_url: URL of the server's port 8000, without a path.
        session_key: the sandbox's key.
        client: a client of `open_client`.
        redact: removes secrets that an error response may quote; the session key is always removed.
    """

    def __init__(
        self, base_url: str, session_key: str, client: httpx.Client, redact: Redact = lambda text: text
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._headers = {"X-Session-API-Key": session_key}
        self._client = client
        self._redact = redact
        self._hide_key = redacting([session_key])

    def _pages(
        self, shape: type[AnyPage], aim: str, path: str, params: Mapping[str, Any], max_pages: int, **options: Any
    ) -> Iterator[AnyPage]:
        """Yield up to `max_pages` pages, from the first."""
        for _ in range(max_pages):
            page, _ = self._read(shape, aim, "GET", path, params=params, **options)
            yield page
            if page.next_page_id is None:
                return
            params = {**params, "page_id": page.next_page_id}

    def _read(self, shape: type[Shape], aim: str, method: str, path: str, **options: Any) -> tuple[Shape, Any]:
        """Return the parsed response and the whole document."""
        content = self._call(aim, method, path, **options)
        try:
            with _parsing:
                return read_shape(content, shape)
        except ValueError:
            raise WrongServer(f"the server that was asked to {aim} is not an agent server") from None

    def _read_if_known(
        self, shape: type[Shape], aim: str, method: str, path: str, **options: Any
    ) -> tuple[Shape, Any] | None:
        try:
            return self._read(shape, aim, method, path, **options)
        except AgentServerRefused as error:
            if error.status == 404:
                return None
            raise

    def _call(
        self,
        aim: str,
        method: str,
        path: str,
        *,
        seconds: float = CONTROL_SECONDS,
        max_bytes: int = MAX_BYTES,
        extra: Mapping[str, str] | None = None,
        **content: Any,
    ) -> bytes:
        headers = {**self._headers, **(extra or {})}
        url = self._base_url + path
        with _http_errors(aim), _point(method, aim):
            answer = exchange(
                self._client, method, url, headers=headers, seconds=seconds, max_bytes=max_bytes, **content
            )
        return answer.need(aim, lambda text: self._hide_key(self._redact(text)))


def _point(method: str, aim: str) -> AbstractContextManager[None]:
    return nullcontext() if method == "GET" else failpoints.around(f"agent_server.{aim.replace(' ', '_')}")


@contextmanager
def _http_errors(aim: str) -> Iterator[None]:
    try:
        yield
    except httpx.HTTPError as error:
        # Only the error's type: its text and its request may quote the sent body.
        raise AgentServerUnreachable(f"no response when asked to {aim}: {type(error).__name__}") from None
