"""Nodes that fall silent, and the watch that declares them lost."""

from typing import Any

from shared.models import Node
from shared.store import nodes
from tests.doubles import RecordingPublisher
from tests.factories import NODE_ID
from tests.worker.scenes import row
from worker.lost_nodes import NodeWatch
from worker.parts import Parts

LIMIT = 20.0


class Clock:
    """Seconds that a test counts."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def listen(watch: NodeWatch, clock: Clock, seconds: float = LIMIT, step: float = 1.0) -> None:
    """Look every second for so long."""
    watch.look()
    for _ in range(round(seconds / step)):
        clock.seconds += step
        watch.look()


def lose(other: Parts) -> None:
    """Have `node-a` found lost, and evacuated."""
    clock = Clock()
    listen(NodeWatch(other, clock), clock)


def jobs(parts: Parts) -> list[Any]:
    assert isinstance(parts.publisher, RecordingPublisher)
    return parts.publisher.jobs


def status_of(parts: Parts) -> str:
    return row(parts, Node, NODE_ID).status


def give_up(other: Parts) -> None:
    with other.database.transaction() as session:
        nodes.forget(session, NODE_ID)
