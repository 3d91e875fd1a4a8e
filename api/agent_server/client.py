"""Short questions to the agent servers of running sandboxes. Nothing is woken for them, and no engine is asked.

Traffic that clients send themselves goes through `api.sandbox_proxy`.
"""

import asyncio
import ssl
from contextlib import AbstractContextManager, nullcontext
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, NamedTuple

import httpx

from api.errors.upstream import BadGateway, BrokenOff, UpstreamRefused
from api.json_text import check_size, in_thread_if_large
from api.schemas.v1.sandboxes import agent_server_url, wire_status
from shared.crypto import Vault
from shared.errors import Conflict, NotFound, TooLarge
from shared.json_documents import check_texts, clean_text, read_document
from shared.models import Sandbox
from shared.observability import failpoints
from shared.states import Status

CONNECT_SECONDS = 5.0
# The agent server drops a connection that was idle for 5 s.
KEEPALIVE_SECONDS = 4.0
# For a request and its whole answer: a hostile server sends a byte now and then.
SECONDS = 30.0
# All of an answer is held.
MAX_BYTES = 8 * 1024 * 1024
# Of a file's text each comma counts, too.
MAX_VALUES = 1_000_000
MAX_DETAIL = 500
# Refusals of what a client has asked for. A 401 or a 403 is none: the key that was shown is the service's.
REFUSALS = (400, 404, 409, 413, 422, 429)


class Answer(NamedTuple):
    """What an agent server said."""

    status: int
    content: bytes

    def need(self) -> bytes:
        """The content of a success.

        Raises:
            Unanswered: it is none.
        """
        if not 200 <= self.status < 300:
            raise BadGateway(f"the agent server answered {self.status}")
        return self.content

    async def check_refusal(self) -> None:
        """Pass a refusal on, where the request is in a client's words.

        Raises:
            Refused: it is one. A 422 counts as a 400: its entries are about a request that the client has not made.
        """
        if self.status in REFUSALS:
            status = 400 if self.status == 422 else self.status
            raise UpstreamRefused(status, await self.read_detail() or f"the agent server answered {self.status}")

    async def read_detail(self) -> str:
        """What an error says of itself, to people."""
        try:
            said = (await in_thread_if_large(self.content, _load, self.content))["detail"]
        except (ValueError, KeyError, TypeError):
            return ""
        return clean_text(" ".join(said.split()), MAX_DETAIL) or "" if isinstance(said, str) else ""

    async def read_json(self) -> Any:
        """The document of a success.

        Raises:
            Unanswered: it is none, or no JSON, or has too many values.
        """
        try:
            return await in_thread_if_large(self.content, _load, self.need())
        except ValueError:
            raise BadGateway("the agent server's answer is no JSON") from None

    async def read_shown(self) -> Any:
        """The same, of what is given to a client as it is.

        Raises:
            Unanswered: as above; or no answer of ours could hold it.
        """
        document = await self.read_json()
        try:
            await in_thread_if_large(self.content, check_texts, document)
        except ValueError as error:
            raise BadGateway(f"the agent server's answer is no JSON: {error}") from None
        return document


class AgentServers:
    """The connections of one process, on one event loop."""

    def __init__(self, vault: Vault) -> None:
        """Show each its own key."""
        self._vault = vault
        self._client = httpx.AsyncClient(
            trust_env=False,
            # They speak no TLS: this one trusts nobody, and costs no reading of certificates.
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            timeout=httpx.Timeout(SECONDS, connect=CONNECT_SECONDS),
            limits=httpx.Limits(keepalive_expiry=KEEPALIVE_SECONDS),
            # A small part of what is encoded may inflate to any size.
            headers={"Accept-Encoding": "identity"},
            # Those of one sandbox would be sent to all others: ports of one host share them.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        )

    async def ask(self, sandbox: Sandbox, method: str, path: str, **request: Any) -> Answer:
        """Its answer, whatever its status.

        Args:
            sandbox: whose agent server.
            method: of the request.
            path: below the server's address.
            request: `params` or `json`, as httpx has them.

        Raises:
            NotFound: the sandbox is deleted.
            Conflict: it does not run; the text says what to do.
            TooLarge: the answer is.
            Unanswered: its agent server does not answer in time, or encodes its answer; BrokenOff: not to the end.
        """
        key = self._vault.decrypt(sandbox.session_key)
        return await self.ask_at(_address(sandbox), key, method, path, **request)

    async def ask_at(self, origin: str, key: str, method: str, path: str, **request: Any) -> Answer:
        """The same, of who has found out already where it is and that it runs.

        A request is sent once: nothing here sends it again, so that what it changes is changed at most once.

        Raises:
            TooLarge: the answer is.
            Unanswered: nobody answers there in time, or the answer is encoded; BrokenOff: not to the end.
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
            raise BadGateway("the sandbox's agent server does not answer") from None

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


def _points(method: str, path: str) -> AbstractContextManager[None]:
    """A failpoint before and after what may change something there, under the last word of its path."""
    return nullcontext() if method == "GET" else failpoints.around(f"agent_server.{path.rpartition('/')[2]}")


def _load(content: bytes) -> Any:
    check_size(content)
    return read_document(content, MAX_VALUES)


async def _read(response: httpx.Response) -> bytes:
    if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raise BadGateway("the agent server's answer is encoded, which nobody asked for")
    content = bytearray()
    try:
        async for chunk in response.aiter_bytes():
            content += chunk
            if len(content) > MAX_BYTES:
                raise TooLarge(f"the agent server's answer is larger than {MAX_BYTES} bytes")
    except httpx.HTTPError:
        raise BrokenOff("the agent server's answer broke off") from None
    return bytes(content)


def _address(sandbox: Sandbox) -> str:
    status, url = wire_status(sandbox), agent_server_url(sandbox)
    if status == "MISSING":
        raise NotFound("sandbox", sandbox.id)
    if status == Status.PAUSED:
        raise Conflict(f"the sandbox is paused: POST /api/v1/sandboxes/{sandbox.id}/resume, and ask again")
    if status != Status.RUNNING or url is None:
        raise Conflict(f"the sandbox does not run: it is {status}")
    return url
