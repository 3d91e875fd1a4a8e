"""Logs are kept before their containers are removed. A failure to keep one affects nothing else."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlmodel import select

from shared.clock import after, now
from shared.container_logs import kept_logs
from shared.conversations import known_secrets
from shared.models import Sandbox, SandboxLog
from shared.states import Desired, Reason, Status
from tests.factories import ApiUser, session_key_of
from tests.fakes.engine import FakeEngine
from tests.worker.sandboxes.printed_logs import container_of, logs_of, reads
from tests.worker.scenarios import (
    ASKED,
    SECRETS,
    another,
    change,
    claim,
    configure,
    delete,
    request_start,
    row,
    running,
    set_desired,
    start,
    warm,
)
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState
from worker.loops.sweep import sweep
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile


def test_log_outlives_a_deleted_sandbox(context: WorkerContext, engine: FakeEngine, user: ApiUser) -> None:
    sandbox_id = running(context, user)
    engine.calls.clear()
    delete(context, sandbox_id)
    assert logs_of(context, sandbox_id) == [(["the last line"], "removed")]
    assert reads(engine) == 1
    verbs = [verb for verb, _ in engine.calls]
    assert verbs.index("stop") < verbs.index("read_log") < verbs.index("remove"), "it has the processes' last words"


def test_log_outlives_a_failed_start(context: WorkerContext, engine: FakeEngine, user: ApiUser) -> None:
    engine.at_boot = 3
    sandbox_id = start(context, user)
    reconcile(context, sandbox_id)
    failed = row(context, Sandbox, sandbox_id)
    assert (failed.status, failed.reason) == (Status.ERROR, Reason.EXIT_CODE)
    assert str(failed.detail).endswith("\nthe last line")
    assert logs_of(context, sandbox_id) == [(["the last line"], "exited")]
    assert container_name(sandbox_id) not in engine.containers
    assert reads(engine) == 1, "one reading serves both"


def test_log_of_a_server_that_never_responds_is_kept(context: WorkerContext, engine: FakeEngine, user: ApiUser) -> None:
    engine.at_boot = "never"
    sandbox_id = start(context, user)
    reconcile(context, sandbox_id)
    assert row(context, Sandbox, sandbox_id).reason == Reason.HEALTH_TIMEOUT
    assert logs_of(context, sandbox_id) == [(["the last line"], "failed")]


def test_log_of_a_container_that_exits_is_kept(context: WorkerContext, engine: FakeEngine, user: ApiUser) -> None:
    sandbox_id = running(context, user)
    found = container_of(engine, sandbox_id)
    found.state, found.exit_code, found.oom_killed = ContainerState.EXITED, 137, True
    change(context, Sandbox, sandbox_id, due_at=now())
    reconcile(context, sandbox_id)
    assert row(context, Sandbox, sandbox_id).reason == Reason.OOM_KILLED
    assert logs_of(context, sandbox_id) == [(["the last line"], "exited")]


def test_each_container_has_its_own_log(context: WorkerContext, engine: FakeEngine, user: ApiUser) -> None:
    sandbox_id = running(context, user)
    set_desired(context, sandbox_id, Desired.STOPPED)
    reconcile(context, sandbox_id)
    first = container_of(engine, sandbox_id)
    first.state = ContainerState.DEAD
    set_desired(context, sandbox_id, Desired.RUNNING)
    reconcile(context, sandbox_id)
    assert container_of(engine, sandbox_id).container_id != first.container_id
    container_of(engine, sandbox_id).log.append("of the second")
    delete(context, sandbox_id)
    assert logs_of(context, sandbox_id) == [
        (["the last line"], "replaced"),
        (["the last line", "of the second"], "removed"),
    ]


def test_no_secret_is_kept(context: WorkerContext, engine: FakeEngine, user: ApiUser) -> None:
    configure(context, user)
    sandbox_id = running(context, user)
    request_start(context, user, sandbox_id)
    key = session_key_of(row(context, Sandbox, sandbox_id))
    container_of(engine, sandbox_id).log += [f"it says {secret}" for secret in (*SECRETS, key)]
    delete(context, sandbox_id)
    [(lines, _)] = logs_of(context, sandbox_id)
    assert lines == ["the last line", *["it says ******"] * (len(SECRETS) + 1)]
    assert ASKED in SECRETS


def test_log_of_a_warm_sandbox_is_not_read(context: WorkerContext, engine: FakeEngine) -> None:
    sandbox_id = warm(context)
    reconcile(context, sandbox_id)
    engine.calls.clear()
    delete(context, sandbox_id)
    assert (reads(engine), logs_of(context, sandbox_id)) == (0, [])


def test_log_of_a_claimed_sandbox_deleted_before_its_init_is_not_read(
    context: WorkerContext, engine: FakeEngine, user: ApiUser
) -> None:
    reconcile(context, warm(context))
    sandbox_id = claim(context, user)
    delete(context, sandbox_id)
    assert (reads(engine), logs_of(context, sandbox_id)) == (0, [])


def test_container_that_never_started_has_no_log(context: WorkerContext, engine: FakeEngine, user: ApiUser) -> None:
    sandbox_id = running(context, user)
    container_of(engine, sandbox_id).state = ContainerState.CREATED
    delete(context, sandbox_id)
    assert (reads(engine), logs_of(context, sandbox_id)) == (0, [])


def test_retention_of_zero_days_keeps_no_log(context: WorkerContext, engine: FakeEngine, user: ApiUser) -> None:
    none = replace(context, settings=context.settings.model_copy(update={"container_log_days": 0.0}))
    sandbox_id = running(none, user)
    delete(none, sandbox_id)
    assert (reads(engine), logs_of(none, sandbox_id)) == (0, [])
    engine.at_boot = 3
    failed = start(none, user)
    reconcile(none, failed)
    assert "the last line" in str(row(none, Sandbox, failed).detail)
    assert logs_of(none, failed) == []


def test_worker_that_dies_before_the_removal_keeps_the_log_once(
    context: WorkerContext, engine: FakeEngine, user: ApiUser
) -> None:
    sandbox_id = running(context, user)

    class Death(BaseException):
        pass

    def die(_name: str) -> None:
        raise Death

    engine.before["remove"] = die
    set_desired(context, sandbox_id, Desired.DELETED)
    with pytest.raises(Death):
        reconcile(context, sandbox_id)
    assert logs_of(context, sandbox_id) == [(["the last line"], "removed")]
    engine.before.clear()
    change(context, Sandbox, sandbox_id, lease_until=after(-1))
    reconcile(another(context), sandbox_id)
    assert row(context, Sandbox, sandbox_id).status == Status.DELETED
    assert logs_of(context, sandbox_id) == [(["the last line"], "removed")]


def _refuse(engine: FakeEngine, _monkeypatch: pytest.MonkeyPatch) -> None:
    engine.refuse["read_log"] = 1


def _fail(engine: FakeEngine, _monkeypatch: pytest.MonkeyPatch) -> None:
    engine.fail["read_log"] = 1


def _break_secrets(_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> list[str]:
        raise ValueError("this key decrypts nothing")

    monkeypatch.setattr(known_secrets, "find_in_sandbox", broken)


def _break_store(_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(kept_logs, "keep", broken)


@pytest.mark.parametrize("harm", [_refuse, _fail, _break_secrets, _break_store])
def test_log_that_cannot_be_kept_blocks_nothing(
    context: WorkerContext,
    engine: FakeEngine,
    user: ApiUser,
    monkeypatch: pytest.MonkeyPatch,
    harm: Callable[[FakeEngine, pytest.MonkeyPatch], None],
) -> None:
    sandbox_id = running(context, user)
    harm(engine, monkeypatch)
    delete(context, sandbox_id)
    assert row(context, Sandbox, sandbox_id).attempt == 0
    assert logs_of(context, sandbox_id) == []
    engine.at_boot = 3
    harm(engine, monkeypatch)
    failed = start(context, user)
    reconcile(context, failed)
    assert row(context, Sandbox, failed).reason == Reason.EXIT_CODE


def test_old_logs_are_deleted_by_the_sweep(context: WorkerContext, user: ApiUser) -> None:
    sandbox_id = running(context, user)
    short = replace(context, settings=context.settings.model_copy(update={"container_log_days": 0.000_001}))
    delete(short, sandbox_id)
    sweep(context)
    assert logs_of(context, sandbox_id), "not before its time"
    with context.database.transaction() as session:
        [log] = session.exec(select(SandboxLog)).all()
        log.expires_at = log.read_at
    sweep(context)
    assert logs_of(context, sandbox_id) == []
