"""Defective reconcilers. A test of the reconciler must detect each of them."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
from sqlmodel import Session, col, update

from shared.errors import LeaseLost
from shared.leasing import leases, waiters
from shared.models import Sandbox
from shared.sandboxes import status as sandbox_status
from shared.states import Desired
from worker.engine.protocol import ContainerState
from worker.sandboxes import reconciler
from worker.sandboxes.planner import Action, Health, plan

Plan = Callable[..., Action]


class Patch:
    """Installs functions as a monkeypatch does, and records their errors.

    The reconciler handles an error like a defect of the sandbox, so a broken mutant would look like a detected one.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.errors: list[Exception] = []
        self._monkeypatch = monkeypatch

    def setattr(self, target: object, name: str, wrong: Callable[..., Any]) -> None:
        """Replace a function until the test's end."""

        @wraps(wrong)
        def recorded(*arguments: Any, **options: Any) -> Any:
            try:
                return wrong(*arguments, **options)
            except LeaseLost:
                raise  # as the right function does, if another worker has the row
            except Exception as error:
                self.errors.append(error)
                raise

        self._monkeypatch.setattr(target, name, recorded)


Mutate = Callable[[Patch], None]


def _new_pause_is_not_executed(desired: Desired, state: ContainerState, **observed: Any) -> Action:
    action = plan(desired, state, **observed)
    return Action.WRITE_RUNNING if action == Action.PAUSE else action


def _paused_counts_as_stopped(desired: Desired, state: ContainerState, **observed: Any) -> Action:
    action = plan(desired, state, **observed)
    return Action.WRITE_PAUSED if action == Action.STOP and state == ContainerState.PAUSED else action


def _volume_is_not_checked(desired: Desired, state: ContainerState, **observed: Any) -> Action:
    return plan(desired, state, **{**observed, "has_volume": False})


def _every_desired_state_is_new(desired: Desired, state: ContainerState, **observed: Any) -> Action:
    return plan(desired, state, **{**observed, "unapplied": True})


def _no_desired_state_is_new(desired: Desired, state: ContainerState, **observed: Any) -> Action:
    return plan(desired, state, **{**observed, "unapplied": False})


def _created_is_not_started(desired: Desired, state: ContainerState, **observed: Any) -> Action:
    action = plan(desired, state, **observed)
    return Action.FAIL if action == Action.START and state == ContainerState.CREATED else action


def _health_is_assumed(desired: Desired, state: ContainerState, **observed: Any) -> Action:
    return plan(desired, state, **{**observed, "health": Health.READY})


PLANS: dict[str, Plan] = {
    "a new pause is not executed": _new_pause_is_not_executed,
    "a paused container counts as stopped": _paused_counts_as_stopped,
    "the volume is not checked": _volume_is_not_checked,
    "every desired state is new": _every_desired_state_is_new,
    "no desired state is new": _no_desired_state_is_new,
    "a created container is not started": _created_is_not_started,
    "health is assumed": _health_is_assumed,
}


def _without_fence_in_writes(patch: Patch) -> None:
    def write(
        session: Session,
        table: Any,
        row_id: str,
        _fence: int,
        *,
        still: object = None,  # noqa: ARG001 - checked together with the fence
        returning: tuple[str, ...] = (),
        **values: Any,
    ) -> tuple[Any, ...]:
        written = update(table).where(col(table.id) == row_id).values(**values)
        columns = written.returning(*(getattr(table, name) for name in returning or ("id",)))
        return tuple(session.execute(columns.execution_options(synchronize_session=False)).one())

    patch.setattr(leases, "write", write)


def _older_generation_is_observed(patch: Patch) -> None:
    right = sandbox_status.set_status

    def set_status(
        session: Session, sandbox: Sandbox, state: Any, *, observed_generation: int | None = None, **rest: Any
    ) -> bool:
        before = observed_generation and observed_generation - 1
        return right(session, sandbox, state, observed_generation=before, **rest)

    patch.setattr(sandbox_status, "set_status", set_status)


def _no_waiter_is_enqueued(patch: Patch) -> None:
    patch.setattr(waiters, "enqueue_waiters", lambda *_: waiters.Waiters())


def _planned_by(wrong: Plan) -> Mutate:
    return lambda patch: patch.setattr(reconciler, "plan", wrong)


MUTANTS: dict[str, Mutate] = {name: _planned_by(wrong) for name, wrong in PLANS.items()} | {
    "no fencing token in status writes": _without_fence_in_writes,
    "an older generation is observed": _older_generation_is_observed,
    "no waiter is enqueued": _no_waiter_is_enqueued,
}
