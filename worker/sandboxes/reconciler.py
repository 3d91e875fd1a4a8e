"""The reconcile loop: observe the container, plan, execute one action, and repeat until the desired state is reached.

If it can't be reached, the loop ends with the status ERROR and a reason.
"""

import time
from contextlib import ExitStack
from typing import NoReturn

import structlog

from shared.agent_server.errors import AgentServerError, DoorUnavailable, NoKeyRequired, WrongServer
from shared.clock import after
from shared.crypto import MissingKey
from shared.errors import LeaseLost
from shared.models import Sandbox
from shared.queue.jobs import CheckSandbox
from shared.sandboxes import desired_state
from shared.states import PAUSING, Desired, Reason, Status
from worker.context import LaneJob, WorkerContext
from worker.engine.protocol import ContainerStatus, EngineError, EngineRefused, EngineUnavailable, ImageMissing
from worker.lease_runner import Retry, run_leased, taking_slot
from worker.sandboxes.actions import DesiredStateChanged, SandboxActions
from worker.sandboxes.agent_server_lifecycle import ReadinessTimer
from worker.sandboxes.planner import BOOTING, ENDING, FINAL_ACTIONS, REACHED, RESCHEDULABLE, Action, plan
from worker.sandboxes.rescheduling import reschedule
from worker.sandboxes.status_writer import ACTION_REASONS, AWAITED, DEFECT, TROUBLE, StatusWriter

log = structlog.get_logger()

# Consecutive responses of another server until the sandbox fails: an address may change before a probe.
MAX_WRONG_SERVERS = 4
WRONG_SERVER_SECONDS = 0.1
# Actions for one generation: far more than any plan needs, so that an endless plan is stopped.
MAX_ACTIONS = 12

# Attempts that trouble counts, for a backoff of up to 4 s.
TROUBLE_ATTEMPTS = 3


def reconcile(context: WorkerContext, sandbox_id: str) -> None:
    """Bring a sandbox to its desired state, or write the reason why it can't be reached."""
    run_leased(context, Sandbox, sandbox_id, lambda *claimed: SandboxReconciler(*claimed).run(), _give_up)


def refresh_status(context: WorkerContext, sandbox_id: str, silent_seconds: float = 0.0) -> bool:
    """Write the observed state of a sandbox whose desired state was observed, without executing an action or waiting.

    Args:
        silent_seconds: for how long its agent server is known not to have responded.

    Returns:
        Whether nothing is left to do, or a job is enqueued; if not, `reconcile` must run.
    """

    def work(context: WorkerContext, sandbox: Sandbox) -> None:
        SandboxReconciler(context, sandbox, status_only=True, silent_seconds=silent_seconds).run()

    return run_leased(context, Sandbox, sandbox_id, work, _give_up, only_observed=True)


class SandboxReconciler:
    """One worker's leased run on one sandbox."""

    def __init__(
        self, context: WorkerContext, sandbox: Sandbox, *, status_only: bool = False, silent_seconds: float = 0.0
    ) -> None:
        """Take the row as claimed; every write checks its fencing token."""
        self._context = context
        self._sandbox = sandbox
        self._status_writer = StatusWriter(context, sandbox)
        self._actions = SandboxActions(context, sandbox, self._status_writer, is_check=status_only)
        self._health_wait = ReadinessTimer(context.settings.health_timeout, silent_seconds)
        # This run may write the observed state, and may execute no action.
        self._status_only = status_only
        # An action was executed after the last check of the fencing token.
        self._executed_since_fence_check = False
        self._action_count = 0
        self._wrong_server_count = 0
        # The slot in the lane of boots, if the run has taken one.
        self._slots = ExitStack()
        self._has_slot = False

    def run(self) -> None:
        """Execute actions until a final status is written.

        Raises:
            Retry: the engine rejected an action, or the engine or the node's door has a temporary error; or the run
                was for the status only, and an action is due; or too many sandboxes boot.
            LeaseLost: another worker owns the sandbox now.
        """
        try:
            with self._slots:
                self._run()
        except LeaseLost:
            if self._executed_since_fence_check:
                self._bump_generation()
            raise

    def _run(self) -> None:
        try:
            self._run_actions()
        except EngineError as error:
            # Some requests belong to no action: if the engine rejects one of these, a retry may succeed.
            self._retry_later(Reason.ENGINE_ERROR, f"{TROUBLE}: {error}")
        except (DoorUnavailable, MissingKey) as error:
            self._retry_later(AWAITED[type(error)], f"{error}; the worker retries")

    def _retry_later(self, reason: Reason, detail: str) -> NoReturn:
        """Keep the desired state, and retry for as long as the engine or the node's door has temporary errors.

        Attempts count for the backoff only: an action that the engine refuses next is retried, whatever the max.
        """
        self._status_writer.explain(reason, detail)
        raise Retry(detail, counts=self._sandbox.attempt < TROUBLE_ATTEMPTS) from None

    def _run_actions(self) -> None:
        while self._sandbox.status != Status.DELETED:
            self._context.renewer.mark_progress(Sandbox, self._sandbox)
            observed = self._actions.observe()
            try:
                action = self._plan(observed)
            except WrongServer as error:
                if self._is_superseded() or self._may_probe_again() or self._configure(observed, error):
                    continue
                self._status_writer.fail(Reason(error.reason), str(error), observed)
                return
            self._wrong_server_count = 0
            if action in REACHED:
                if self._write_reached(action, observed):
                    return
                continue
            if self._is_superseded():
                continue
            if action in FINAL_ACTIONS:
                self._status_writer.write_final(action, observed, has_executed=self._actions.has_executed)
                return
            if self._status_only and not (action == Action.AWAIT_HEALTH and self._health_wait.is_over):
                raise Retry(f"{action} is due; this run writes the status only", seconds=0, counts=False)
            if not self._execute(action, observed):
                return

    def give_up(self) -> None:
        """Write that a bug in this service caused the failure. It ends only a start or a resume.

        Raises:
            Retry: the sandbox is to be paused, stopped or deleted.
        """
        if self._sandbox.desired == Desired.RUNNING:
            self._status_writer.give_up()
            return
        self._status_writer.explain(Reason.INTERNAL_ERROR, DEFECT)
        raise Retry("a pause, stop or delete is retried without a max")

    def _write_reached(self, action: Action, observed: ContainerStatus) -> bool:
        """Write the reached state with its generation, which makes a check beforehand unnecessary. False: overtaken."""
        try:
            self._status_writer.write_final(action, observed, has_executed=self._actions.has_executed)
        except LeaseLost:
            if not self._is_superseded():
                raise
            return False
        return True

    def _may_probe_again(self) -> bool:
        """Whether to observe and probe again: another container may have got the observed address since."""
        self._wrong_server_count += 1
        if self._wrong_server_count >= MAX_WRONG_SERVERS:
            return False
        time.sleep(WRONG_SERVER_SECONDS)
        return True

    def _configure(self, observed: ContainerStatus, error: WrongServer) -> bool:
        """Restart a server without its configuration, or stop it if the sandbox is not to run."""
        if not isinstance(error, NoKeyRequired) or not self._actions.may_lack_configuration:
            return False
        if self._status_only:
            raise Retry("a restart is due; this run writes the status only", seconds=0, counts=False)
        self._wrong_server_count = 0
        is_wanted = self._sandbox.desired == Desired.RUNNING
        return self._execute(Action.STOP, observed) and (not is_wanted or self._execute(Action.START, observed))

    def _is_superseded(self) -> bool:
        """Read the desired state before acting: a delete overtakes a start, and a lost lease ends the run."""
        newer = self._actions.find_newer()
        self._executed_since_fence_check = False
        if newer is not None:
            self._adopt(newer)
        return newer is not None

    def _bump_generation(self) -> None:
        """Have the desired state reconciled as a new generation: this run's last action may have outlasted the lease.

        The engine has no fencing tokens, so the effect of a late action would appear as drift.
        """
        due_at = after(self._context.shared.republish_seconds)
        with self._context.database.transaction() as session:
            bumped = desired_state.bump_generation(session, self._sandbox.id, due_at=due_at)
        log.warning("late_action", sandbox=self._sandbox.id, generation_bumped=bumped)
        self._context.publisher.publish(CheckSandbox(self._sandbox.id, self._sandbox.node_id))

    def _adopt(self, newer: desired_state.CurrentDesiredState) -> None:
        """Continue with the newer desired state in this run, without another run."""
        with self._context.database.transaction() as session:
            desired_state.acknowledge(session, self._sandbox.id, self._sandbox.fence, newer.generation)
        for name, value in newer._asdict().items():
            setattr(self._sandbox, name, value)
        self._action_count = 0
        self._actions.reset()
        self._health_wait.reset()

    def _plan(self, observed: ContainerStatus) -> Action:
        if self._sandbox.desired == Desired.DELETED and self._sandbox.desired_reason == Reason.ALREADY_USED:
            return Action.WRITE_DELETED  # container and volume are left to the quarantine
        action = plan(
            Desired(self._sandbox.desired),
            observed.state,
            unapplied=self._actions.unapplied,
            health=self._actions.probe(observed),
            has_volume=observed.has_volume,
            is_outdated=self._may_replace() and self._actions.is_outdated(observed),
            is_new=self._sandbox.ready_at is None,
        )
        stays = action == Action.AWAIT_HEALTH and self._health_wait.is_left_to_monitor(self._sandbox, observed)
        return Action.WRITE_RUNNING if stays else action

    def _may_replace(self) -> bool:
        return self._sandbox.desired == Desired.RUNNING and self._actions.unapplied

    def _execute(self, action: Action, observed: ContainerStatus) -> bool:
        """Execute one action; False if the run is over: the sandbox is in ERROR, or on another node."""
        is_boot = action in BOOTING and not (action == Action.CREATE and self._sandbox.desired in PAUSING)
        if is_boot and not self._has_slot and not self._health_wait.is_over:
            self._take_slot()
        if action == Action.AWAIT_HEALTH:
            return self._await_health(observed)
        if action == Action.AWAIT_REMOVAL:
            self._actions.await_removal()
            return True
        self._action_count += 1
        self._executed_since_fence_check = True
        try:
            self._actions.execute(action, observed)
            if self._action_count > MAX_ACTIONS:
                raise EngineRefused(f"{action} has no effect: {observed.text}")
        except DesiredStateChanged:
            return True
        except DoorUnavailable:
            raise
        except EngineUnavailable as error:
            if action in RESCHEDULABLE and reschedule(self._context, self._sandbox, str(error)):
                return False
            raise
        except (AgentServerError, ImageMissing, EngineRefused) as error:
            return self._handle_failure(action, error, observed)
        return True

    def _take_slot(self) -> None:
        """Take a slot in the lane of boots until the end of the run.

        Raises:
            Retry: no slot is free for the sandbox's owner.
        """
        row = self._sandbox
        job = LaneJob(CheckSandbox(row.id, row.node_id), row.id, row.owner_id or "")
        self._slots.enter_context(taking_slot(self._context, self._context.boots, job))
        self._has_slot = True

    def _await_health(self, observed: ContainerStatus) -> bool:
        self._health_wait.begin()
        if self._health_wait.is_over:
            detail = f"no response from the agent server in {self._health_wait.waited:.0f} s"
            self._status_writer.fail(Reason.HEALTH_TIMEOUT, detail, observed)
            return False
        self._health_wait.pause()
        return True

    def _handle_failure(self, action: Action, error: Exception, observed: ContainerStatus) -> bool:
        """Reschedule the sandbox to another node, or retry with backoff, or end in ERROR: False."""
        if action in RESCHEDULABLE and reschedule(self._context, self._sandbox, str(error)):
            return False
        if not isinstance(error, ImageMissing):
            return self._retry_or_fail(action, str(error), observed)
        self._status_writer.fail(Reason.IMAGE_PULL_FAILED, f"the image {self._sandbox.spec_id}: {error}", observed)
        return False

    def _retry_or_fail(self, action: Action, detail: str, observed: ContainerStatus) -> bool:
        """Retry a refused action until the max attempts are used up. What ends a sandbox's work has no max."""
        is_first = self._status_writer.has_waited and self._sandbox.attempt <= TROUBLE_ATTEMPTS
        last = self._sandbox.attempt + 1 >= self._context.settings.max_attempts and not is_first
        is_pause = self._sandbox.desired in PAUSING and self._actions.unapplied
        if not last or is_pause or action in ENDING:
            self._status_writer.explain(Reason.ENGINE_ERROR, f"{action} is retried: {detail}")
            raise Retry(f"{action}: {detail}")
        self._status_writer.fail(ACTION_REASONS.get(action, Reason.ENGINE_ERROR), detail, observed)
        return False


def _give_up(context: WorkerContext, sandbox: Sandbox) -> None:
    SandboxReconciler(context, sandbox).give_up()
