"""Short requests of the API to the agent servers of running sandboxes. They resume no sandbox and call no engine.

Clients' own traffic goes through `api.sandbox_proxy`.
"""

import asyncio
import ssl
from contextlib import AbstractContextManager, nullcontext
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, NamedTuple

import httpx

from api.errors.upstream import BadGateway, IncompleteResponse, UpstreamRejected
from api.json_text import check_size, in_thread_if_large
from api.schemas.v1.sandboxes import agent_server_url, wire_status
from shared.crypto import Vault
from shared.errors import Conflict, NotFound, TooLarge
from shared.json_documents import check_texts, clean_text, read_document
from shared.models import Sandbox
from shared.observability import failpoints
from shared.states import Status

CONNECT_SECONDS = 5.0
# Less than the 5 s after which the agent server closes an idle connection.
KEEPALIVE_SECONDS = 4.0
# For a request and its whole response: a hostile server may send one byte at a time.
SECONDS = 30.0
# A response is read into memory.
MAX_BYTES = 8 * 1024 * 1024
# Each comma in a file's text counts as a value, too.
MAX_VALUES = 1_000_000
MAX_DETAIL = 500
# Errors of a client's request. A 401 or a 403 is not one: the key is this service's.
CLIENT_ERRORS = (400, 404, 409, 413, 422, 429)


class Answer(NamedTuple):
    """The response of an agent server."""

    status: int
    content: bytes

    def need(self) -> bytes:
        """Return the content of a success.

        Raises:
            BadGateway: the response is not a success.
        """
        if not 200 <= self.status < 300:
            raise BadGateway(f"the agent server answered {self.status}")
        return self.content

    async def check_refusal(self) -> None:
        """Pass on an error of a request that contains a client's values.

        Raises:
            UpstreamRefused: the status is one of `CLIENT_ERRORS`. A 422 becomes a 400: its entries describe the request
                of this service, not the client's.
        """
        if self.status in CLIENT_ERRORS:
            status = 400 if self.status == 422 else self.status
            raise UpstreamRejected(status, await self.read_detail() or f"the agent server answered {self.status}")

    async def read_detail(self) -> str:
        """Return the error message for people, or an empty text."""
        try:
            detail = (await in_thread_if_large(self.content, _load, self.content))["detail"]
        except (ValueError, KeyError, TypeError):
            return ""
        return clean_text(" ".join(detail.split()), MAX_DETAIL) or "" if isinstance(detail, str) else ""

    async def read_json(self) -> Any:
        """Return the JSON document of a success.

        Raises:
            BadGateway: the response is not a success, is not JSON or has too many values.
        """
        try:
            return await in_thread_if_large(self.content, _load, self.need())
        except ValueError:
            raise BadGateway("the agent server's response is not JSON") from None

    async def read_shown(self) -> Any:
        """Return a document for a client, unchanged.

        Raises:
            BadGateway: as for `read_json`, or a JSON response can't contain it.
        """
        document = await self.read_json()
        try:
            await in_thread_if_large(self.content, check_texts, document)
        except ValueError as error:
            raise BadGateway(f"the agent server's response is not JSON: {error}") from None
        return document


class AgentServers:
    """Connections to agent servers, for one process on one event loop."""

    def __init__(self, vault: Vault) -> None:
        """Send each agent server its own key, which `vault` decrypts."""
        self._vault = vault
        self._client = httpx.AsyncClient(
            trust_env=False,
            # Agent servers have no TLS: this context trusts no certificate, and reads none from disk.
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            timeout=httpx.Timeout(SECONDS, connect=CONNECT_SECONDS),
            limits=httpx.Limits(keepalive_expiry=KEEPALIVE_SECONDS),
            # A small encoded response may inflate to any size.
            headers={"Accept-Encoding": "identity"},
            # No cookies: ports of one host share them, so one sandbox's cookies would be sent to all others.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        )

    async def ask(self, sandbox: Sandbox, method: str, path: str, **request: Any) -> Answer:
        """Send a request to a sandbox's agent server; return the response of any status.

        Args:
            sandbox: has the agent server.
            method: of the request.
            path: below the server's address.
            request: `params` or `json`, as for httpx.

        Raises:
            NotFound: the sandbox is deleted.
            Conflict: the sandbox is not running; the text says what to do.
            TooLarge: the response is too large.
            BadGateway: the agent server does not respond in time, or encodes its response. BrokenOff: the response is
                incomplete.
        """
        key = self._vault.decrypt(sandbox.session_key)
        return await self.ask_at(_address(sandbox), key, method, path, **request)

    async def ask_at(self, origin: str, key: str, method: str, path: str, **request: Any) -> Answer:
        """Send a request to a running agent server at a known address; return the response of any status.

        The request is never retried, so its effect happens at most once.

        Raises:
            TooLarge: the response is too large.
            BadGateway: no response in time, or an encoded one. BrokenOff: the response is incomplete.
        """
        try:
            headers = {"X-Session-API-Key": key}
            with _points(method, path):
                async with (
                    asyncio.timeout(SECONDS),
                    self._client.stream(method, f"{origin}{path}", headers=headers, **request) as response,
                ):
                    return Answer(response.status_code, await _read(response))
        except (httpx.HTTPError, TimeoutError):
            raise BadGateway("the sandbox's agent server does not respond") from None

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


def _points(method: str, path: str) -> AbstractContextManager[None]:
    """Return failpoints before and after a request that may change something, named by the end of its path."""
    return nullcontext() if method == "GET" else failpoints.around(f"agent_server.{path.rpartition('/')[2]}")


def _load(content: bytes) -> Any:
    check_size(content)
    return read_document(content, MAX_VALUES)


async def _read(response: httpx.Response) -> bytes:
    if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raise BadGateway("the agent server's response is encoded, contrary to the request")
    content = bytearray()
    try:
        async for chunk in response.aiter_bytes():
            content += chunk
            if len(content) > MAX_BYTES:
                raise TooLarge(f"the agent server's response is larger than {MAX_BYTES} bytes")
    except httpx.HTTPError:
        raise IncompleteResponse("the agent server's response is incomplete") from None
    return bytes(content)


def _address(sandbox: Sandbox) -> str:
    status, url = wire_status(sandbox), agent_server_url(sandbox)
    if status == "MISSING":
        raise NotFound("sandbox", sandbox.id)
    if status == Status.PAUSED:
        raise Conflict(f"the sandbox is paused: POST /api/v1/sandboxes/{sandbox.id}/resume, then retry")
    if status != Status.RUNNING or url is None:
        raise Conflict(f"the sandbox is not running: it is {status}")
    return url
