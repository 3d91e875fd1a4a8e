"""The sandboxes that a drain stops, waits for and leaves, over all states."""

from itertools import product
from typing import Any

import pytest

from shared.db.database import Database
from shared.models import Sandbox
from shared.sandboxes import drain
from shared.states import Desired, PauseKind, Reason, Status
from tests.factories import NODE_ID, ApiUser, make_sandbox

STATES = [
    (desired, status, kind, is_observed)
    for desired, status, kind, is_observed in product(Desired, Status, [None, *PauseKind], [True, False])
    if (status == Status.PAUSED) == (kind is not None) and status != Status.DELETED
]


def expected(desired: Desired, status: Status, kind: PauseKind | None, is_observed: bool) -> str:
    if desired == Desired.DELETED:
        return "awaited"
    if is_observed and (status == Status.ERROR or kind == PauseKind.STOPPED):
        return "resting"
    return "awaited" if desired == Desired.STOPPED and not is_observed else "running"


@pytest.mark.parametrize(("desired", "status", "kind", "is_observed"), STATES)
def test_drain_in_each_state(
    database: Database, user: ApiUser, desired: Desired, status: Status, kind: PauseKind | None, is_observed: bool
) -> None:
    columns: dict[str, Any] = {"generation": 2, "observed_generation": 2 if is_observed else 1, "due_at": None}
    sandbox = make_sandbox(database, user, status=status, desired=desired, pause_kind=kind, **columns)
    progress: dict[str, list[str]] = {"awaited": [], "running": [], "resting": []} | {
        expected(desired, status, kind, is_observed): [sandbox.id]
    }
    with database.transaction() as session:
        assert vars(drain.drain_progress(session, NODE_ID)) == progress
        assert [found.id for found in drain.find_running(session, NODE_ID)] == progress["running"]
        drain.stop(session, "another", sandbox.id)
        drain.stop(session, NODE_ID, sandbox.id)
    with database.reading() as session:
        found = session.get_one(Sandbox, sandbox.id)
        assert found.generation == (3 if progress["running"] else 2)
        assert found.desired == (Desired.STOPPED if progress["running"] else desired)
        assert (found.due_at is not None) == bool(progress["running"])
        assert sandbox.id not in drain.drain_progress(session, NODE_ID).running


@pytest.mark.parametrize("desired", [Desired.RUNNING, Desired.PAUSED])
def test_drain_stops_what_may_run_on_a_lost_node(database: Database, user: ApiUser, desired: Desired) -> None:
    columns: dict[str, Any] = {"reason": Reason.NODE_LOST, "desired": desired}
    sandbox = make_sandbox(database, user, status=Status.ERROR, **columns)
    with database.transaction() as session:
        assert drain.drain_progress(session, NODE_ID) == drain.DrainProgress(running=[sandbox.id])
        drain.stop(session, NODE_ID, sandbox.id)
        assert drain.drain_progress(session, NODE_ID) == drain.DrainProgress(awaited=[sandbox.id])


def test_drain_ignores_tombstones_and_other_nodes(database: Database, user: ApiUser) -> None:
    make_sandbox(database, user, status=Status.DELETED)
    make_sandbox(database, user, node_id="another")
    with database.reading() as session:
        assert drain.drain_progress(session, NODE_ID) == drain.DrainProgress()
