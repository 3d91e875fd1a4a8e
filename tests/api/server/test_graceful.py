"""Graceful shutdown of an API process: which connections it serves to their end."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from api.server import graceful
from api.server.graceful import DrainingServer

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


# The drain ends when the old connections are closed, not by time.
NEVER = 3600.0


def test_connection_made_during_shutdown_gets_a_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graceful, "DRAIN_SECONDS", NEVER)

    async def scenario() -> tuple[bytes, bytes]:
        async with listening() as (server, address), connected(address) as idle:
            first = await send(idle)
            async with connected_during_drain(server, address) as late:
                idle[1].close()
                await until(lambda: not any(found.is_serving() for found in server.servers))
                return first, await send(late)

    first, last = asyncio.run(scenario())
    assert first.startswith(b"HTTP/1.1 200")
    assert b"connection: close" not in first
    assert last.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in last


def test_idle_connection_delays_shutdown_only_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graceful, "DRAIN_SECONDS", 0.5)
    monkeypatch.setattr(graceful, "LATE_REQUEST_SECONDS", NEVER)

    async def scenario() -> bytes:
        async with listening() as (server, address), connected(address) as idle:
            await send(idle)
            server.should_exit = True
            return await idle[0].read()

    assert asyncio.run(scenario()) == b""


def test_connection_without_a_request_is_closed_at_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graceful, "DRAIN_SECONDS", NEVER)
    monkeypatch.setattr(graceful, "LATE_REQUEST_SECONDS", 0.5)

    async def scenario() -> bytes:
        async with listening() as (server, address), connected(address) as idle:
            await send(idle)
            async with connected_during_drain(server, address) as silent:
                idle[1].close()
                return await silent[0].read()

    assert asyncio.run(scenario()) == b""


async def application(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[DrainingServer, tuple[str, int]]]:
    """Serve on a socket that outlives the server, as the supervisor's sockets do."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        server = DrainingServer(uvicorn.Config(application, lifespan="off", log_config=None), lambda: None)
        serving = asyncio.create_task(server.serve(sockets=[held.dup()]))
        await until(lambda: server.started)
        async with asyncio.timeout(30):
            yield server, held.getsockname()
            await serving


@asynccontextmanager
async def connected(address: tuple[str, int]) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*address)
    try:
        yield reader, writer
    finally:
        writer.close()


@asynccontextmanager
async def connected_during_drain(
    server: DrainingServer, address: tuple[str, int]
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Begin the shutdown, and connect while the server drains its older connection."""
    server.should_exit = True
    await until(lambda: (b"connection", b"close") in server.server_state.default_headers)
    async with connected(address) as late:
        await until(lambda: len(server.server_state.connections) == 2)
        yield late


async def send(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bytes:
    """Send a request; return the head of its response."""
    reader, writer = connection
    writer.write(REQUEST)
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(2)
    return head.lower().replace(b"http/1.1", b"HTTP/1.1")


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.005)
