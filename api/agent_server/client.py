"""Short requests of the API to the agent servers of running sandboxes. They resume no sandbox and call no engine.

Clients' own traffic goes through `api.sandbox_proxy`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from typing import Any
from weakref import WeakValueDictionary

import httpx

from api.agent_server.transport import AgentServerTransport, describe_failure
from api.caller_slots import CallerSlots
from api.schemas.v1.sandboxes import wire_status
from shared.agent_server.door import DoorAccess
from shared.agent_server.errors import AgentServerUnreachable, IncompleteResponse
from shared.agent_server.limits import CONNECT_SECONDS, MAX_DOWNLOAD_BYTES
from shared.agent_server.responses import AgentServerResponse, ResponseReader
from shared.agent_server.untrusted_http import HTTP_ERRORS, client_options, drop_location_async
from shared.crypto import Vault
from shared.errors import Conflict, NotFound
from shared.models import Sandbox
from shared.observability import failpoints
from shared.sandboxes.status import agent_server
from shared.states import Status

# Total timeout of a request and its response: a hostile server may send one byte at a time. A client gets its result
# within 30 s.
SECONDS = 25.0
# Concurrent requests to one agent server, until their responses are parsed: each may hold a whole response in memory.
# Further requests wait.
MAX_CONCURRENT = 8
# Responses of the agent servers of all sandboxes of one user that are read or parsed at a time.
MAX_OF_CALLER = 32


class AgentServers:
    """Connections to agent servers, for one process on one event loop."""

    def __init__(self, vault: Vault, door: DoorAccess) -> None:
        """Send each agent server its own key, which `vault` decrypts, through its node's door."""
        self._vault = vault
        self._slots = WeakValueDictionary[str, asyncio.Semaphore]()
        self._callers = CallerSlots(MAX_OF_CALLER)
        self._client = httpx.AsyncClient(
            transport=AgentServerTransport(door),
            timeout=httpx.Timeout(SECONDS, connect=CONNECT_SECONDS),
            **client_options(drop_location_async),
        )

    async def request(self, sandbox: Sandbox, method: str, path: str, **content: Any) -> AgentServerResponse:
        """Send a request to a sandbox's agent server; return the response of any status.

        Args:
            path: a path of `shared.agent_server.paths`.
            content: further arguments of `exchange_at`.

        Raises:
            NotFound: the sandbox is deleted.
            Conflict: the sandbox is not running; the text says what to do.
            AgentServerError: as for `exchange_at`.
        """
        return await self.request_at(*self._server_of(sandbox), method, path, **content)

    async def request_at(self, origin: str, key: str, method: str, path: str, **content: Any) -> AgentServerResponse:
        """Send a request as `exchange_at` does; return the response of any status."""
        async with self.exchange_at(origin, key, method, path, **content) as response:
            return response

    def exchange(
        self, sandbox: Sandbox, method: str, path: str, **content: Any
    ) -> AbstractAsyncContextManager[AgentServerResponse]:
        """Send a request as `request` does, for a block that parses the response."""
        return self.exchange_at(*self._server_of(sandbox), method, path, **content)

    @asynccontextmanager
    async def exchange_at(
        self, origin: str, key: str, method: str, path: str, *, seconds: float | None = None, **content: Any
    ) -> AsyncIterator[AgentServerResponse]:
        """Send a request to a running agent server at a known address, for a block that parses the response.

        The request is never retried, so its effect happens at most once. It counts for `MAX_CONCURRENT` until the end
        of the block; from the head of its response on, it also counts for the caller's `MAX_OF_CALLER`.

        Args:
            origin: URL of the server, at its node's door.
            path: a path of `shared.agent_server.paths`.
            seconds: total timeout until the block begins, by default `SECONDS`.
            content: `params` or `json`, as for httpx.

        Raises:
            AgentServerUnreachable: no response in time. IncompleteResponse: the connection was closed early.
            WrongServer: the response is encoded. ResponseTooLarge: it is larger than the reader's limits.
        """
        slots = self._slots.setdefault(origin, asyncio.Semaphore(MAX_CONCURRENT))
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(SECONDS if seconds is None else seconds):
                    await held.enter_async_context(slots)
                    with _points(method, path):
                        response = await self._receive(held, method, origin + path, key, content)
            except (*HTTP_ERRORS, TimeoutError) as error:
                raise AgentServerUnreachable(f"the request to the sandbox failed: {describe_failure(error)}") from None
            yield response

    async def close(self) -> None:
        await self._client.aclose()

    def _server_of(self, sandbox: Sandbox) -> tuple[str, str]:
        """The address of a sandbox's agent server, and its key."""
        return _address(sandbox), self._vault.decrypt(sandbox.session_key)

    async def _receive(
        self, held: AsyncExitStack, method: str, url: str, key: str, content: dict[str, Any]
    ) -> AgentServerResponse:
        headers = {"X-Session-API-Key": key}
        async with self._client.stream(method, url, headers=headers, **content) as response:
            # Not earlier: servers that do not respond must not take the caller's slots from other sandboxes.
            await held.enter_async_context(self._callers.of_caller())
            reader = ResponseReader(response, MAX_DOWNLOAD_BYTES)
            try:
                async for chunk in response.aiter_bytes():
                    if not reader.feed(chunk):
                        break
            except HTTP_ERRORS:
                raise IncompleteResponse("the agent server's response is incomplete") from None
            return reader.received


def _points(method: str, path: str) -> AbstractContextManager[None]:
    """Return failpoints before and after a request that may change something, named by the end of its path."""
    return nullcontext() if method == "GET" else failpoints.around(f"agent_server.{path.rpartition('/')[2]}")


def _address(sandbox: Sandbox) -> str:
    status, url = wire_status(sandbox), agent_server(sandbox.exposed_urls)
    if status == "MISSING":
        raise NotFound("sandbox", sandbox.id)
    if status == Status.PAUSED:
        raise Conflict(f"the sandbox is paused: POST /api/v1/sandboxes/{sandbox.id}/resume, then retry")
    if status != Status.RUNNING or url is None:
        raise Conflict(f"the sandbox is not running: it is {status}")
    return url
