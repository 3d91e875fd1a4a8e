"""Helpers that let the failure detector mark silent nodes lost."""

from typing import Any

from shared.models import Node
from shared.nodes import registry as node_registry
from tests.doubles import RecordingPublisher
from tests.factories import NODE_ID
from tests.worker.scenarios import row
from worker.context import WorkerContext
from worker.loops.failover import NodeFailureDetector

LIMIT = 20.0


class Clock:
    """Clock that a test advances."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def check_for(detector: NodeFailureDetector, clock: Clock, seconds: float = LIMIT, *, is_writable: bool = True) -> None:
    """Run a check every second for `seconds`. The detector's own heartbeats are stored if `is_writable`."""
    detector.check()
    for _ in range(round(seconds)):
        clock.seconds += 1.0
        if is_writable:
            detector.record_stored()
        detector.check()


def lose(other_worker: WorkerContext) -> None:
    """Mark `node-a` lost, and fail over its sandboxes."""
    clock = Clock()
    check_for(NodeFailureDetector(other_worker, clock), clock)


def jobs(context: WorkerContext) -> list[Any]:
    assert isinstance(context.publisher, RecordingPublisher)
    return context.publisher.jobs


def status_of(context: WorkerContext) -> str:
    return row(context, Node, NODE_ID).status


def tombstone(other_worker: WorkerContext) -> None:
    with other_worker.database.transaction() as session:
        node_registry.forget(session, NODE_ID)
