"""Replay of events from a hostile agent server: it ends in time, with a limited number of frames."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from websockets.asyncio.client import ClientConnection

from api.sandbox_proxy import event_replay
from api.sandbox_proxy.event_replay import Resend, frames
from shared.agent_server.errors import AgentServerUnreachable
from shared.agent_server.limits import MAX_EVENT_PAGES, MAX_ITEMS
from shared.agent_server.responses import AgentServerResponse

MAX_FRAMES = MAX_EVENT_PAGES * MAX_ITEMS


class SilentServer:
    """A websocket that sends no frame, and is closed after the replay."""

    async def recv(self) -> str:
        await asyncio.Event().wait()
        return ""

    async def __aiter__(self) -> AsyncIterator[str]:
        frames: list[str] = []
        for frame in frames:
            yield frame


def replay(page: Any, delay: float = 0.0) -> list[str | bytes]:
    """Replay with an agent server that sends this page after a delay, again and again."""
    return asyncio.run(_replay(page, delay))


async def _replay(page: Any, delay: float) -> list[str | bytes]:
    @asynccontextmanager
    async def fetch(_path: str, *, params: dict[str, Any], seconds: float) -> AsyncIterator[AgentServerResponse]:
        assert params["limit"] == MAX_ITEMS
        if seconds < delay:
            raise AgentServerUnreachable
        await asyncio.sleep(delay)
        yield AgentServerResponse(200, json.dumps(page).encode())

    server = cast("ClientConnection", SilentServer())
    return [frame async for frame in frames(server, Resend("0" * 32, None), fetch, lambda _size: None)]


@pytest.fixture(autouse=True)
def _short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_replay, "STATE_TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr(event_replay, "MAX_PAUSE_SECONDS", 0.01)


@pytest.mark.parametrize(
    "page",
    [
        {},
        [],
        None,
        {"items": "x" * 1000, "next_page_id": None},
        {"items": {"a": {}}, "next_page_id": None},
        {"items": ["a"], "next_page_id": None},
        {"items": [{}] * (MAX_ITEMS + 1), "next_page_id": None},
        {"items": [{}], "next_page_id": {"a": "b"}},
        {"items": [{}], "next_page_id": "a" * 65},
    ],
)
def test_page_of_another_shape_sends_no_frame(page: Any) -> None:
    assert replay(page) == []


def test_endless_pages_are_read_up_to_a_limit() -> None:
    assert len(replay({"items": [{}] * MAX_ITEMS, "next_page_id": "again"})) == MAX_FRAMES


def test_slow_pages_share_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_replay, "REPLAY_SECONDS", 0.2)
    assert len(replay({"items": [{}], "next_page_id": "again"}, 0.05)) < MAX_EVENT_PAGES // 2


@pytest.mark.parametrize(
    ("page", "count"),
    [
        ({"items": [], "next_page_id": "again"}, 0),
        ({"items": [{"id": "same", "timestamp": "now"}], "next_page_id": "again"}, 1),
        ({"items": [{"id": "same", "timestamp": "x" * 100_000}], "next_page_id": None}, 1),
    ],
)
def test_pages_without_new_events_share_a_timeout(monkeypatch: pytest.MonkeyPatch, page: Any, count: int) -> None:
    monkeypatch.setattr(event_replay, "REPLAY_SECONDS", 0.2)
    assert len(replay(page, 0.005)) == count
