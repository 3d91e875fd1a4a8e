"""A sandbox that floods the proxy with tiny chunks waits; event streams and terminals do not."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from api.limits.buffers import BufferLimit, Share
from api.sandbox_proxy.chunk_rates import ChunkRate, ChunkRates
from api.sandbox_proxy.websocket import Client, _pass_down
from api.server.counted_websockets import Buffers
from shared.agent_server.limits import MIN_CHUNK_BYTES
from shared.db.database import Database
from tests.api.sandbox_proxy.doubles import key_of
from tests.api.sandbox_proxy.test_hostile_servers import hostile
from tests.factories import ApiUser

CHUNKS = 5000
FLOOD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * CHUNKS + b"0\r\n\r\n"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of all chunk rates. The clock stands still, because on a slow machine, a flood would not be one."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("api.sandbox_proxy.chunk_rates.sleep", sleep)
    monkeypatch.setattr("api.sandbox_proxy.chunk_rates.get_running_loop", lambda: SimpleNamespace(time=lambda: 0.0))
    return slept


def test_flood_of_tiny_chunks_waits_and_is_complete(
    api: httpx.Client, database: Database, user: ApiUser, pauses: list[float]
) -> None:
    with hostile(database, user, FLOOD) as sandbox:
        response = api.get(f"/sandbox/{sandbox.id}/x", headers=key_of(sandbox))
    assert response.content == b"x" * CHUNKS
    assert pauses


def test_flood_of_tiny_frames_waits_and_is_complete(pauses: list[float]) -> None:
    sent: list[Any] = []

    async def flood() -> AsyncIterator[str | bytes]:
        for _ in range(CHUNKS):
            yield "x"

    async def send(message: Any) -> None:
        sent.append(message)

    server: Any = SimpleNamespace(protocol=SimpleNamespace(close_rcvd=SimpleNamespace(code=1000, reason="")))
    unused: Any = None
    client = Client(unused, send, Buffers(), Share(BufferLimit(CHUNKS), "a"))
    assert asyncio.run(_pass_down(flood(), server, client, ChunkRate())) == (1000, "")
    assert len(sent) == CHUNKS
    assert pauses


@pytest.mark.parametrize(
    ("size", "per_second", "number", "waits"),
    [
        (1, 1000, 10_000, False),
        (100, 5000, 10_000, False),
        (1, 100_000, 1000, False),
        (MIN_CHUNK_BYTES, 100_000, 10_000, False),
        (1, 100_000, 10_000, True),
    ],
)
def test_only_floods_wait(
    monkeypatch: pytest.MonkeyPatch, pauses: list[float], size: int, per_second: int, number: int, waits: bool
) -> None:
    clock: Any = SimpleNamespace(now=0.0, time=lambda: clock.now)
    monkeypatch.setattr("api.sandbox_proxy.chunk_rates.get_running_loop", lambda: clock)

    async def stream(rate: ChunkRate) -> None:
        for _ in range(number):
            await rate.limit(b"x" * size)
            clock.now += 1 / per_second

    asyncio.run(stream(ChunkRate()))
    assert bool(pauses) == waits


def test_connections_of_a_sandbox_share_its_chunk_rate() -> None:
    rates = ChunkRates()
    one, other = rates.find("one"), rates.find("other")
    assert rates.find("one") is one
    assert one is not other
