"""A health monitor whose probes and checks run immediately, in the calling thread, and a door that responds."""

from collections.abc import Iterator

import httpx
import pytest

from shared.agent_server.door import ERROR_HEADER
from tests.doubles import ImmediateExecutor
from worker.context import WorkerContext
from worker.loops.door_check import DoorCheck
from worker.loops.health_monitor import LivenessMonitor


@pytest.fixture
def monitor(context: WorkerContext) -> LivenessMonitor:
    """The monitor of the test's worker."""
    return LivenessMonitor(context, probes=ImmediateExecutor(), checks=ImmediateExecutor())


@pytest.fixture
def door() -> Iterator[DoorCheck]:
    """The check of a door that responds: it rejects a request that leads to no sandbox."""
    rejection = httpx.Response(403, headers={ERROR_HEADER: "403"})
    with httpx.Client(transport=httpx.MockTransport(lambda _: rejection)) as http:
        yield DoorCheck(http, "http://127.0.0.1:3001")
