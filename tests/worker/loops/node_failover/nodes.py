"""Nodes that fall silent, and the watch that declares them lost."""

from typing import Any

from shared.models import Node
from shared.nodes import registry as node_registry
from tests.doubles import RecordingPublisher
from tests.factories import NODE_ID
from tests.worker.scenes import row
from worker.context import WorkerContext
from worker.loops.node_failover import NodeFailureDetector

LIMIT = 20.0


class Clock:
    """Seconds that a test counts."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def listen(watch: NodeFailureDetector, clock: Clock, seconds: float = LIMIT, step: float = 1.0) -> None:
    """Look every second for so long."""
    watch.look()
    for _ in range(round(seconds / step)):
        clock.seconds += step
        watch.look()


def lose(other: WorkerContext) -> None:
    """Have `node-a` found lost, and evacuated."""
    clock = Clock()
    listen(NodeFailureDetector(other, clock), clock)


def jobs(context: WorkerContext) -> list[Any]:
    assert isinstance(context.publisher, RecordingPublisher)
    return context.publisher.jobs


def status_of(context: WorkerContext) -> str:
    return row(context, Node, NODE_ID).status


def give_up(other: WorkerContext) -> None:
    with other.database.transaction() as session:
        node_registry.forget(session, NODE_ID)
