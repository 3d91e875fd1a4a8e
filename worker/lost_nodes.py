"""Other nodes: which of them are lost, and what becomes of their sandboxes."""

import time
from collections.abc import Callable, Mapping
from datetime import datetime

import structlog
from sqlmodel import col

from shared.clock import after
from shared.jobs import Job, ResumeSandbox
from shared.models import Node, Sandbox
from shared.statements import given
from shared.store import evacuation, followers, nodes
from shared.store.evacuation import Claimant, Lost
from worker.parts import Parts

log = structlog.get_logger()

THERE = col(Sandbox.node_id) == given("node_id")


class NodeWatch:
    """Counts for how long each of the other nodes has been silent while this worker was listening.

    Clocks of machines differ, and after a time without the database every node looks silent: what counts is what was
    seen here, look by look. A worker that starts anew begins to count anew; nothing but patience is lost with it.
    """

    def __init__(self, parts: Parts, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin to listen; `clock` gives seconds."""
        self._parts = parts
        self._clock = clock
        self._looked_at: float | None = None
        self._silence: dict[tuple[str, datetime], float] = {}

    def look(self) -> None:
        """Look once, and evacuate the nodes that are lost."""
        with self._parts.database.reading() as session:
            found = nodes.heartbeats(session)
        found.pop(self._parts.settings.node, None)
        for lost in self._listen(found):
            evacuate(self._parts, lost)

    def _listen(self, heartbeats: Mapping[str, datetime]) -> list[Lost]:
        limit, at = self._parts.settings.node_lost_seconds, self._clock()
        # One long pause of our own is not the others' silence.
        passed = 0.0 if self._looked_at is None else min(at - self._looked_at, limit / 4)
        self._looked_at = at
        known = self._silence
        self._silence = {beat: known[beat] + passed if beat in known else 0.0 for beat in heartbeats.items()}
        return [Lost(*beat) for beat, seconds in self._silence.items() if seconds >= limit]


def evacuate(parts: Parts, lost: Lost) -> None:
    """Tell the node's sandboxes, and move those that their owners have resumed since."""
    with parts.database.transaction() as session:
        before = session.get(Node, lost.node_id)
        known = before is not None and before.detail is not None
        if nodes.lose(session, lost.node_id, lost.heartbeat_at) is None:
            return
    if not known:
        log.warning("node_lost", lost=lost.node_id)
    with parts.database.reading() as session:
        ids = evacuation.concerned(session, lost.node_id)
    for sandbox_id in ids:
        parts.publisher.publish(*_evacuate(parts, lost, sandbox_id))
    parts.publisher.publish(*_take_due(parts, lost))


def _evacuate(parts: Parts, lost: Lost, sandbox_id: str) -> list[Job]:
    here, due_at = parts.settings.node, after(parts.shared.republish_seconds)
    claimant = Claimant(parts.keeper.owner, parts.keeper.seconds, due_at)
    with parts.database.transaction() as session:
        done = evacuation.evacuate(session, lost, sandbox_id, claimant)
    if done is None:
        return []
    log.warning("evacuated", sandbox=sandbox_id, lost=lost.node_id, moved_to=done.moved_to)
    moved: list[Job] = [ResumeSandbox(sandbox_id, done.moved_to)] if done.moved_to else []
    return [*moved, *done.woken.jobs(here)]


def _take_due(parts: Parts, lost: Lost) -> list[Job]:
    """Its start tasks and conversations have nobody else who would look after them."""
    with parts.database.reading() as session:
        due = followers.find_due(session, THERE, node_id=lost.node_id)
    if not any(due):
        return []
    with parts.database.transaction() as session:
        taken = followers.take_due(session, due, again_at=after(parts.shared.republish_seconds))
    return taken.jobs(parts.settings.node)
