"""Wrong versions of what carries wishes out: whatever claims to test it must tell each of them from the right one."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlmodel import Session, col, update

from shared.leasing import leases, waiters
from shared.models import Sandbox
from shared.sandboxes import status as sandbox_status
from shared.states import Desired
from worker.engine.protocol import ContainerState
from worker.sandboxes import reconciler
from worker.sandboxes.planner import Action, Health, plan
from worker.sandboxes.reconciler import SandboxReconciler

Plan = Callable[..., Action]
Mutate = Callable[[pytest.MonkeyPatch], None]


def _fresh_pause_is_not_carried_out(desired: Desired, state: ContainerState, **seen: Any) -> Action:
    step = plan(desired, state, **seen)
    return Action.SETTLE_RUNNING if step == Action.FREEZE else step


def _frozen_counts_as_stopped(desired: Desired, state: ContainerState, **seen: Any) -> Action:
    step = plan(desired, state, **seen)
    return Action.SETTLE_PAUSED if step == Action.STOP and state == ContainerState.FROZEN else step


def _leftovers_are_not_looked_at(desired: Desired, state: ContainerState, **seen: Any) -> Action:
    return plan(desired, state, **{**seen, "leftovers": False})


def _every_wish_is_new(desired: Desired, state: ContainerState, **seen: Any) -> Action:
    return plan(desired, state, **{**seen, "fresh": True})


def _no_wish_is_new(desired: Desired, state: ContainerState, **seen: Any) -> Action:
    return plan(desired, state, **{**seen, "fresh": False})


def _created_is_waited_for(desired: Desired, state: ContainerState, **seen: Any) -> Action:
    step = plan(desired, state, **seen)
    return Action.FAIL if step == Action.START and state == ContainerState.CREATED else step


def _health_is_taken_for_granted(desired: Desired, state: ContainerState, **seen: Any) -> Action:
    return plan(desired, state, **{**seen, "health": Health.READY})


PLANS: dict[str, Plan] = {
    "a new pause is not carried out": _fresh_pause_is_not_carried_out,
    "what is frozen counts as stopped": _frozen_counts_as_stopped,
    "leftovers are not looked at": _leftovers_are_not_looked_at,
    "every wish is new": _every_wish_is_new,
    "no wish is new": _no_wish_is_new,
    "a created container is not started": _created_is_waited_for,
    "health is taken for granted": _health_is_taken_for_granted,
}


def _without_fence_at_the_look(patch: pytest.MonkeyPatch) -> None:
    """Before each step the wish is looked up, and not whether the lease still holds."""

    def is_overtaken(self: SandboxReconciler) -> bool:
        with self._context.database.reading() as session:
            row = session.get_one(Sandbox, self._sandbox.id)
        if row.generation == self._sandbox.generation:
            return False
        self._sandbox.generation, self._sandbox.desired = row.generation, row.desired
        self._action_count = 0
        self._actions.reset()
        self._health_wait.reset()
        return True

    patch.setattr(SandboxReconciler, "_is_overtaken", is_overtaken)


def _without_fence_at_the_write(patch: pytest.MonkeyPatch) -> None:
    def write(
        session: Session,
        table: Any,
        row_id: str,
        _fence: int,
        *,
        still: object = None,  # noqa: ARG001 - that goes with the fence
        returning: tuple[str, ...] = (),
        **values: Any,
    ) -> tuple[Any, ...]:
        written = update(table).where(col(table.id) == row_id).values(**values)
        told = written.returning(*(getattr(table, name) for name in returning or ("id",)))
        return tuple(session.execute(told.execution_options(synchronize_session=False)).one())

    patch.setattr(leases, "write", write)


def _later_wish_is_called_answered(patch: pytest.MonkeyPatch) -> None:
    right = sandbox_status.set_status

    def move(
        session: Session, sandbox: Sandbox, state: Any, *, observed_generation: int | None = None, **rest: Any
    ) -> bool:
        if observed_generation is not None:
            observed_generation = session.get_one(Sandbox, sandbox.id).generation
            # Or the write would show that it knows an older one.
            sandbox.generation = observed_generation
        return right(session, sandbox, state, observed_generation=observed_generation, **rest)

    patch.setattr(sandbox_status, "set_status", move)


def _answer_is_for_the_wish_before(patch: pytest.MonkeyPatch) -> None:
    right = sandbox_status.set_status

    def move(
        session: Session, sandbox: Sandbox, state: Any, *, observed_generation: int | None = None, **rest: Any
    ) -> bool:
        before = observed_generation and observed_generation - 1
        return right(session, sandbox, state, observed_generation=before, **rest)

    patch.setattr(sandbox_status, "set_status", move)


def _nobody_is_woken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(waiters, "enqueue_waiters", lambda *_: waiters.NOBODY)


def _late_step_is_not_made_good(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SandboxReconciler, "_bump_generation", lambda _self: None)


def _planned_by(wrong: Plan) -> Mutate:
    return lambda patch: patch.setattr(reconciler, "plan", wrong)


MUTANTS: dict[str, Mutate] = {name: _planned_by(wrong) for name, wrong in PLANS.items()} | {
    "no fence where a step is taken": _without_fence_at_the_look,
    "no fence where a fact is written": _without_fence_at_the_write,
    "a later wish is called answered": _later_wish_is_called_answered,
    "the answer is for the wish before": _answer_is_for_the_wish_before,
    "nobody is woken": _nobody_is_woken,
    "a late step is not made good": _late_step_is_not_made_good,
}
