"""A health monitor whose probes and checks run immediately, in the calling thread."""

import pytest

from tests.doubles import PromptExecutor
from worker.context import WorkerContext
from worker.loops.health_monitor import LivenessMonitor


@pytest.fixture
def monitor(context: WorkerContext) -> LivenessMonitor:
    """The monitor of the test's worker."""
    return LivenessMonitor(context, probes=PromptExecutor(), checks=PromptExecutor())
