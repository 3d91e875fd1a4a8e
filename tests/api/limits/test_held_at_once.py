"""Requests that arrive together, before the first of them holds anything, do not exceed the limits of one user."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from api.app import create_app
from api.limits.concurrency import ConcurrencyLimit
from api.realtime.change_streams import Streams
from api.realtime.completion_waiter import AwaitedRow, CompletionWaiter
from api.request.context import Context
from shared.models import Sandbox
from tests.api.asgi_requests import AsgiRequest
from tests.factories import ApiUser

REQUESTS, LIMIT = 30, 3


class CountingWaiter(CompletionWaiter):
    """Counts the requests that begin to wait."""

    begun = 0

    async def settle(self, awaited_row: AwaitedRow, seconds: float) -> bool:
        self.begun += 1
        return await super().settle(awaited_row, seconds)


class Crowd:
    """Requests of one user, sent at the same time, whose caller leaves when each has been rejected or continues."""

    def __init__(self, method: str, path: str, headers: dict[str, str]) -> None:
        self._requests = [AsgiRequest(method, path, headers) for _ in range(REQUESTS)]
        self._leaving = asyncio.Event()

    async def send(self, app: Any) -> None:
        """Send all requests."""
        self._sent = [asyncio.create_task(request.run(app, self._receiver())) for request in self._requests]

    @property
    def rejected(self) -> int:
        """The number of rejected requests."""
        return sum(request.status == 429 for request in self._requests)

    @property
    def streaming(self) -> int:
        """The number of requests whose response has begun."""
        return sum(bool(request.status == 200 and request.body) for request in self._requests)

    async def leave(self) -> list[int]:
        """Disconnect; return the statuses."""
        self._leaving.set()
        await asyncio.gather(*self._sent)
        return [request.status for request in self._requests]

    def _receiver(self) -> Any:
        messages = [{"type": "http.request", "body": b"{}", "more_body": False}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await self._leaving.wait()
            return {"type": "http.disconnect"}

        return receive


async def until(is_true: Any) -> None:
    async with asyncio.timeout(30):
        while not is_true():  # noqa: ASYNC110 - several objects change
            await asyncio.sleep(0.01)


def test_requests_at_the_same_time_do_not_exceed_the_limit_of_waits(
    context: Context, user: ApiUser, sandbox: Sandbox
) -> None:
    waiter = CountingWaiter(context.database)
    own = replace(context, waiter=waiter)
    own.limits.waiting = limit = ConcurrencyLimit("requests that wait", of_user=LIMIT, of_process=REQUESTS)

    async def run() -> list[int]:
        path = f"/api/v1/sandboxes/{sandbox.id}/pause"
        crowd = Crowd("POST", path, user.headers | {"Prefer": "wait=60"})
        await crowd.send(create_app(own))
        await until(lambda: crowd.rejected + waiter.begun == REQUESTS)
        return await crowd.leave()

    statuses = asyncio.run(run())
    assert (statuses.count(200), statuses.count(429), waiter.begun) == (LIMIT, REQUESTS - LIMIT, LIMIT)
    assert not limit._held


@pytest.mark.usefixtures("model_key", "spec", "node")
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/api/v1/changes"), ("POST", "/api/v1/app-conversations/stream-start")]
)
def test_requests_at_the_same_time_do_not_exceed_the_limit_of_streams(
    context: Context, user: ApiUser, method: str, path: str
) -> None:
    own = replace(context, streams=Streams(context.database))
    own.limits.streams = limit = ConcurrencyLimit("streams", of_user=LIMIT, of_process=REQUESTS)

    async def run() -> list[int]:
        crowd = Crowd(method, path, user.headers | {"Content-Type": "application/json"})
        await crowd.send(create_app(own))
        await until(lambda: crowd.rejected + crowd.streaming == REQUESTS)
        assert sum(limit._held.values()) == LIMIT
        return await crowd.leave()

    statuses = asyncio.run(run())
    assert (statuses.count(200), statuses.count(429)) == (LIMIT, REQUESTS - LIMIT)
    assert not limit._held
