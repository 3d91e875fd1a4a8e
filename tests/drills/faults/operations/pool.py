"""Warm sandboxes: claim, and changes of the pool's size."""

from collections.abc import Mapping

from sqlmodel import col, select

from shared.models import Sandbox
from shared.sandboxes import specs
from shared.states import Status
from tests.drills.faults.operation import Operation, routine
from tests.drills.faults.operations.sandbox import START, start
from tests.drills.faults.runner import Runner
from tests.drills.faults.specs import POOLED_IMAGE
from tests.waiting import eventually


def pooled(runner: Runner) -> str:
    """A pool with one warm sandbox."""
    with runner.released():
        _set_size(runner, 1)
        eventually(lambda: _members(runner) == [True])
    return ""


def _fill(runner: Runner, _subject: str) -> None:
    _set_size(runner, 1)


def _empty(runner: Runner, _subject: str) -> None:
    _set_size(runner, 0)


def _set_size(runner: Runner, size: int) -> None:
    with runner.service.database.transaction() as session:
        specs.change(session, POOLED_IMAGE, {"warm_target": size, "warm_most": size})


def _members(runner: Runner) -> list[bool]:
    """Whether each warm sandbox is ready, and neither due nor leased."""
    with runner.service.database.reading() as session:
        rows = session.exec(select(Sandbox).where(col(Sandbox.owner_id).is_(None))).all()
    return [(row.status, row.due_at, row.lease_until) == (Status.RUNNING, None, None) for row in rows]


OPERATIONS: Mapping[str, Operation] = {
    "claim": Operation(owns=START, prepare=pooled, act=start(POOLED_IMAGE)),
    "sweep-that-fills-the-pool": routine("sweep", act=_fill, owns=frozenset({"sandboxes.warm"})),
    "sweep-that-empties-the-pool": routine("sweep", prepare=pooled, act=_empty, owns=frozenset({"sandboxes.delete"})),
}
