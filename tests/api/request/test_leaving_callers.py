"""Callers that disconnect while their request waits: the wait ends."""

import asyncio
from dataclasses import replace
from typing import Any

from api.app import create_app
from api.realtime.completion_waiter import AwaitedRow, CompletionWaiter
from api.request.context import Context
from shared.db.database import Database
from shared.models import Sandbox
from tests.api.asgi_requests import AsgiRequest
from tests.factories import ApiUser


class ObservedWaiter(CompletionWaiter):
    """Sets one event when a wait begins, and one when it ends."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.begun, self.ended = asyncio.Event(), asyncio.Event()

    async def settle(self, awaited_row: AwaitedRow, seconds: float) -> bool:
        self.begun.set()
        try:
            return await super().settle(awaited_row, seconds)
        finally:
            self.ended.set()


async def leave_while_waiting(context: Context, waiter: ObservedWaiter, request: AsgiRequest) -> None:
    messages = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await waiter.begun.wait()
        return {"type": "http.disconnect"}

    async with asyncio.timeout(30):
        await request.run(create_app(context), receive)
        await waiter.ended.wait()


def test_wait_ends_when_its_caller_disconnects(context: Context, user: ApiUser, sandbox: Sandbox) -> None:
    waiter = ObservedWaiter(context.database)
    observed = replace(context, waiter=waiter)
    request = AsgiRequest("POST", f"/api/v1/sandboxes/{sandbox.id}/pause", user.headers | {"Prefer": "wait=60"})
    asyncio.run(leave_while_waiting(observed, waiter, request))
    assert request.status == 200
    assert not observed.limits.waiting._held
