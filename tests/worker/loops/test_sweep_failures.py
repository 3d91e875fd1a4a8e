"""A step of the sweep that fails, or that meets a locked row, delays no other."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError
from sqlmodel import col, select

from shared.clock import now
from shared.db.database import Database, StoreError
from shared.models import Sandbox, SandboxSpec
from shared.queue.jobs import CheckSandbox, StartSandbox
from shared.states import Desired, Status
from tests.doubles import RecordingPublisher
from tests.factories import NODE_ID, ApiUser, make_sandbox, make_spec
from tests.services.foreign_locks import locked_row
from tests.worker.loops.test_sweep import swept
from tests.worker.scenarios import change, row
from worker.context import WorkerContext
from worker.loops.sweep import sweep

SPECS = ["image:a", "image:b"]


def warm_specs(context: WorkerContext) -> list[str]:
    """The specs of the warm sandboxes that are to run."""
    warm = select(Sandbox.spec_id).where(col(Sandbox.owner_id).is_(None), Sandbox.desired == Desired.RUNNING)
    with context.database.reading() as session:
        return sorted(session.exec(warm).all())


@pytest.fixture
def sandbox(context: WorkerContext, user: ApiUser) -> Sandbox:
    return make_sandbox(context.database, user)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
class TestLockedRows:
    """An operator's session locks a row for longer than a sweep waits."""

    @pytest.fixture
    def context(self, context: WorkerContext, database_url: str) -> Iterator[WorkerContext]:
        settings = context.settings.model_copy(update={"warm_boot_concurrency": 2})
        with closing(Database(database_url, lock_seconds=0.1)) as database:
            yield replace(context, database=database, settings=settings)

    def test_locked_spec_delays_its_own_pool_only(self, context: WorkerContext) -> None:
        for spec_id in SPECS:
            make_spec(context.database, spec_id, warm_target=1, warm_most=1)
        with locked_row(context.database, "sandbox_spec", SPECS[0]):
            sweep(context)
            assert warm_specs(context) == SPECS[1:]
        sweep(context)
        assert warm_specs(context) == SPECS

    @pytest.mark.parametrize("lock", ["UPDATE", "SHARE"])  # each start without a warm sandbox shares a lock
    def test_failure_in_the_pool_of_a_locked_spec_is_counted_later(
        self, context: WorkerContext, user: ApiUser, lock: str
    ) -> None:
        for spec_id in SPECS:
            make_spec(context.database, spec_id, warm_target=1, warm_most=1)
        make_sandbox(context.database, user, spec_id=SPECS[0], owner_id=None, status=Status.ERROR)
        with locked_row(context.database, "sandbox_spec", SPECS[0], lock):
            sweep(context)
            assert warm_specs(context) == SPECS
        sweep(context)
        assert warm_specs(context) == SPECS[1:]
        assert row(context, SandboxSpec, SPECS[0]).warm_failures == 1

    def test_locked_node_delays_placements_only(self, context: WorkerContext, user: ApiUser, sandbox: Sandbox) -> None:
        waiting = make_sandbox(context.database, user, status=Status.STARTING, node_id=None)
        change(context, Sandbox, sandbox.id, due_at=now())
        with locked_row(context.database, "node", NODE_ID), pytest.raises(StoreError):
            sweep(context)
        assert isinstance(context.publisher, RecordingPublisher)
        assert context.publisher.jobs == [CheckSandbox(sandbox.id, NODE_ID)]
        assert swept(context) == [StartSandbox(waiting.id, NODE_ID)]


def test_bug_in_a_step_is_raised_rather_than_an_unavailable_store(
    context: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(error: Exception) -> None:
        raise error

    steps: list[Any] = [lambda _: fail(KeyError("a bug")), lambda _: fail(OperationalError("", {}, Exception()))]
    monkeypatch.setattr("worker.loops.sweep.find_due", lambda *_: steps)
    with pytest.raises(KeyError):
        sweep(context)
