"""The API's connections to agent servers through their nodes' doors, for its own and for proxied requests."""

from typing import Any

import httpcore
import httpx

from shared.agent_server.door import DoorAccess, DoorError, error_in
from shared.agent_server.limits import KEEPALIVE, KEEPALIVE_SECONDS, count_read, limited_header, max_read
from shared.observability import correlation

MAX_IDLE_CONNECTIONS = 1000


class AgentServerTransport(httpx.AsyncHTTPTransport):
    """An httpx transport that sends the doors' token, and limits the size of response headers."""

    def __init__(self, door: DoorAccess) -> None:
        tls = door.tls()
        super().__init__(verify=tls, trust_env=False)
        self._door = door
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls,
            max_connections=None,
            max_keepalive_connections=MAX_IDLE_CONNECTIONS,
            keepalive_expiry=KEEPALIVE_SECONDS,
            network_backend=_Backend(),
            socket_options=KEEPALIVE,
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; return its response as soon as the header is complete.

        Raises:
            DoorError: the door does not respond, or refuses the request.
            httpx.TransportError: the agent server does not respond.
        """
        request.headers.update(self._door.headers)
        with limited_header(), correlation.span(f"agent server {request.method}", "client"):
            request.headers.update(correlation.outgoing_headers())
            response = await self._send(request)
        if error := error_in(response.headers):
            await response.aread()
            await response.aclose()
            raise error
        return response

    async def _send(self, request: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(request)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise DoorError("its node's door does not respond") from None


def describe_failure(error: Exception) -> str:
    """Say what does not respond, after the name of a sandbox: its agent server, or its node's door."""
    return str(error) if isinstance(error, DoorError) else "its agent server does not respond"


class _Backend(httpcore.AnyIOBackend):
    async def connect_tcp(self, *where: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        return CountedStream(await super().connect_tcp(*where, **options))


class CountedStream(httpcore.AsyncNetworkStream):
    """A connection that counts the bytes of each response's header."""

    def __init__(self, inner: httpcore.AsyncNetworkStream) -> None:
        self._inner = inner

    async def read(self, max_bytes: int, *timeout: Any, **options: Any) -> bytes:
        """Read at most as many bytes as the header may still have."""
        return count_read(await self._inner.read(max_read(max_bytes), *timeout, **options))

    async def write(self, *buffer: Any, **options: Any) -> None:
        await self._inner.write(*buffer, **options)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(self, *context: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        return CountedStream(await self._inner.start_tls(*context, **options))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
