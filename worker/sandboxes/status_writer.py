"""The writer of a sandbox's observed state: the status, the jobs of its waiters, and the cleanup after a failure."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from time import monotonic

import structlog

from shared.agent_server.errors import DoorUnavailable
from shared.clock import after, now
from shared.container_logs.kept_logs import LogCause
from shared.crypto import MissingKey
from shared.leasing import leases, waiters
from shared.models import Sandbox, SandboxSpec
from shared.nodes import placement
from shared.nodes.placement import BackoffChange
from shared.observability import metrics
from shared.observability.metrics import StartSource
from shared.queue.jobs import CheckSandbox, Job
from shared.sandboxes import failover, quarantine, specs
from shared.sandboxes import status as sandbox_status
from shared.sandboxes.status import AGENT_SERVER, ObservedState
from shared.states import Desired, PauseKind, Reason, Status
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState, ContainerStatus, EngineRefused
from worker.sandboxes.container_logs import keep_log
from worker.sandboxes.container_spec import container_name, exposed_urls
from worker.sandboxes.ownership import belongs_to_another, is_pools_volume
from worker.sandboxes.planner import Action

log = structlog.get_logger()

# What the removal of a container with its volume and its disk may take beyond one call to the engine.
REMOVE_SECONDS = 60
EXITS = (Reason.EXIT_CODE, Reason.OOM_KILLED)
ACTION_REASONS = {
    Action.CREATE: Reason.CREATE_FAILED,
    Action.START: Reason.START_FAILED,
    Action.INITIALIZE: Reason.INITIALIZE_FAILED,
}
# What is retried without a max: how the detail of an engine's trouble begins, and the reasons of what else is awaited.
TROUBLE = "the engine can't do this now; the worker retries"
AWAITED = {DoorUnavailable: Reason.DOOR_UNAVAILABLE, MissingKey: Reason.SECRET_KEY_MISSING}
DEFECT = "the worker failed in every attempt; its log has the error"


class StatusWriter:
    """Writes one sandbox's observed state under the lease that its row was claimed with."""

    def __init__(self, context: WorkerContext, sandbox: Sandbox) -> None:
        """Take the row as claimed; every write updates it."""
        self._context = context
        self._sandbox = sandbox
        self._name = container_name(sandbox.id)
        # The run before this one ended because something is awaited, and not because an action was refused. The reason
        # of a lost node hides which of the two it was: its engine was away.
        is_awaited = sandbox.reason in (*AWAITED.values(), Reason.NODE_LOST)
        self.has_waited = is_awaited or (sandbox.detail or "").startswith(TROUBLE)
        # Before Python 3.12 `cached_property` has one lock for all instances.
        self._spec: SandboxSpec | None = None
        self._began = now()
        # How long the desired state has waited for this run, in seconds.
        self._queued = (self._began - sandbox.updated_at).total_seconds()
        # Seconds of this run's actions.
        self._action_seconds: dict[str, float] = {}

    @contextmanager
    def measuring(self, action: Action) -> Iterator[None]:
        began, succeeded = monotonic(), False
        try:
            yield
            succeeded = True
        finally:
            took = monotonic() - began
            self._action_seconds[action] = self._action_seconds.get(action, 0.0) + took
            metrics.observe_action(action, took, succeeded=succeeded)

    def enter(self, status: Status) -> None:
        """Write a status between the former and the desired state."""
        if self._sandbox.status != status:
            why = self._desired_reason() if status == Status.DELETING else None
            self._write(ObservedState(status, why), reached=False)

    def write_final(self, action: Action, observed: ContainerStatus, *, has_executed: bool) -> None:
        """Write the status that ends the run.

        Args:
            action: one of the planner's final actions.
            has_executed: whether this run has executed an action for the desired state.
        """
        match action:
            case Action.WRITE_RUNNING:
                outside = None if self._sandbox.desired == Desired.RUNNING else Reason.RESUMED_OUTSIDE
                state = ObservedState(Status.RUNNING, outside, exposed_urls=self.urls(observed), phases=self._phases())
                self._write(replace(state, started_at=observed.started_at), releases_lease=True)
            case Action.WRITE_PAUSED:
                kind = PauseKind.FROZEN if observed.state == ContainerState.PAUSED else PauseKind.STOPPED
                state = ObservedState(Status.PAUSED, self._why_paused(kind), pause_kind=kind)
                self._write(state, releases_lease=True)
            case Action.WRITE_DELETED:
                self._context.network.revoke(self._sandbox, observed)  # this may have failed after the removal
                self.enter(Status.DELETING)
                self._write(ObservedState(Status.DELETED, self._desired_reason()))
            case _:
                self._write_exit(observed, has_executed=has_executed)

    def fail(self, reason: Reason, detail: str, observed: ContainerStatus) -> None:
        """Write ERROR with the container's last log lines, and clean up. Another row's container is quarantined."""
        if self.quarantine_foreign(observed):
            return
        log.warning("sandbox_failed", sandbox=self._sandbox.id, reason=reason.value)
        cause = LogCause.EXITED if reason in EXITS else LogCause.FAILED
        last_lines = keep_log(self._context, self._sandbox, observed, cause)
        text = "\n".join(part for part in (detail, last_lines) if part)
        self._write(ObservedState(Status.ERROR, reason, text))
        self._clean_up(observed)

    def explain(self, reason: Reason, detail: str) -> None:
        """Write why the desired state isn't reached yet; the status does not change.

        The reason of a lost node stays: it lets another node fail the sandbox over. Once the node is back, the detail
        says what its engine does.
        """
        row = self._sandbox
        if row.generation == row.observed_generation:
            return
        if row.reason == Reason.NODE_LOST:
            if self._is_node_lost():
                return
            reason, detail = Reason.NODE_LOST, f"{failover.IS_BACK}: {detail}"
        if (row.reason, row.detail) != (reason, detail):
            self._write(replace(sandbox_status.read_state(row), reason=reason, detail=detail), reached=False)

    def quarantine_foreign(self, observed: ContainerStatus) -> bool:
        """Quarantine the container and delete this row, if the container is another's (`worker.sandboxes.ownership`).

        Returns:
            Whether the container is another row's. The desired state of this row is DELETED then.
        """
        if not self._is_in_use(observed) and not self._belongs_to_another(observed):
            return False
        log.error("sandbox_already_used", sandbox=self._sandbox.id, owner=self._sandbox.owner_id)
        with self._context.database.transaction() as session:
            quarantine.delete_sandbox_row(session, self._sandbox, due_at=after(self._context.shared.republish_seconds))
        self._context.publisher.publish(CheckSandbox(self._sandbox.id, self._sandbox.node_id))
        return True

    def agent_url(self, observed: ContainerStatus) -> str | None:
        """The agent server's URL at this node's door, if the container has an address."""
        return next((str(url["url"]) for url in self.urls(observed) if url["name"] == AGENT_SERVER), None)

    def give_up(self) -> None:
        """Write ERROR for a bug in this service, without a cleanup: the cleanup may be what fails."""
        self._write(ObservedState(Status.ERROR, Reason.INTERNAL_ERROR, DEFECT))

    def urls(self, observed: ContainerStatus) -> list[dict[str, str | int]]:
        """The URLs of the observed container's ports, at this node's door."""
        return exposed_urls(self.spec(), observed, self._context.settings.door_url)

    def spec(self) -> SandboxSpec:
        """The sandbox's spec, read for the first call of this run and cached."""
        if self._spec is None:
            self._spec = specs.read_spec(self._context.database, self._sandbox.spec_id)
        return self._spec

    def _phases(self) -> dict[str, float]:
        """The seconds of the phases of a start: the wait for this run, its actions, and the agent server's boot."""
        actions = {name: took for name, took in self._action_seconds.items() if name != Action.AWAIT_HEALTH}
        health = (now() - self._began).total_seconds() - sum(actions.values())
        phases = {"queue": self._queued, **actions, "health": health}
        return {str(name): round(max(0.0, took), 3) for name, took in phases.items()}

    def _is_node_lost(self) -> bool:
        with self._context.database.reading() as session:
            return placement.is_lost(session, self._context.settings.node)

    def _why_paused(self, kind: PauseKind) -> Reason | None:
        desired = Desired(self._sandbox.desired)
        is_desired = desired == Desired.PAUSED or (desired == Desired.STOPPED and kind == PauseKind.STOPPED)
        return self._desired_reason() if is_desired else Reason.PAUSED_OUTSIDE

    def _desired_reason(self) -> Reason | None:
        return Reason(self._sandbox.desired_reason) if self._sandbox.desired_reason else None

    def _is_in_use(self, observed: ContainerStatus) -> bool:
        """Whether the container runs or is paused, although its row is to be deleted for being stopped for too long."""
        row, alive = self._sandbox, [ContainerState.RUNNING]
        if row.status != Status.ERROR:
            alive.append(ContainerState.PAUSED)
        # No worker has stopped the container of a lost node.
        is_idle = row.desired_reason == Reason.IDLE_DELETED and row.reason != Reason.NODE_LOST
        return is_idle and observed.state in alive

    def _belongs_to_another(self, observed: ContainerStatus) -> bool:
        """Check whose container it is, if the row does not show it."""
        is_in_doubt = self._is_in_doubt()
        return is_in_doubt and belongs_to_another(self._context, self._sandbox, observed, self.agent_url(observed))

    def _is_in_doubt(self) -> bool:
        """Whether the container was created for the warm pool, and the row's owner was never served."""
        row = self._sandbox
        return row.boot_key is not None and (row.owner_id is None or row.ready_at is None)

    def _write_exit(self, observed: ContainerStatus, *, has_executed: bool) -> None:
        """Write ERROR for a container that has exited or vanished without an action of this service."""
        is_lost = self._sandbox.reason == Reason.NODE_LOST  # written by another node, which has not seen the container
        if self._sandbox.status == Status.ERROR and not has_executed and not is_lost:
            if not self.quarantine_foreign(observed):
                self._clean_up(observed)  # ERROR is written already; its first reason is the true one
            return
        if observed.state == ContainerState.ABSENT:
            lost = "" if observed.has_volume else ", and so were the sandbox's files"
            self.fail(Reason.CONTAINER_MISSING, f"the container was removed from outside this service{lost}", observed)
        elif observed.oom_killed:
            self.fail(Reason.OOM_KILLED, "the container exceeded its memory limit", observed)
        else:
            self.fail(Reason.EXIT_CODE, f"the container exited with exit code {observed.exit_code}", observed)

    def _clean_up(self, observed: ContainerStatus) -> None:
        """Remove everything of a sandbox that never was ready; keep the files of one that was, or may have been.

        An error of the engine must not replace the reason in the row: the next resync retries.

        Raises:
            LeaseLost: another worker owns the sandbox, which may run again under the same names.
        """
        leases.read(self._context.database, Sandbox, self._sandbox.id, self._sandbox.fence, ("id",))
        if self._is_in_doubt() and observed.state == ContainerState.ABSENT and is_pools_volume(observed):
            return
        stop_seconds, mark_progress = self._context.settings.stop_seconds, self._context.renewer.mark_progress
        try:
            if self._sandbox.ready_at is None:
                self._context.network.revoke_early(self._sandbox, observed)
                mark_progress(Sandbox, self._sandbox, REMOVE_SECONDS)
                self._context.engine.remove(self._name)
            elif observed.state == ContainerState.RUNNING:
                mark_progress(Sandbox, self._sandbox, stop_seconds)
                self._context.engine.stop(self._name, stop_seconds)
            mark_progress(Sandbox, self._sandbox)
            self._context.network.revoke(self._sandbox, observed, has_ended=True)
        except EngineRefused as error:
            log.warning("not_cleaned_up", sandbox=self._sandbox.id, error=str(error))

    def _write(self, state: ObservedState, *, reached: bool = True, releases_lease: bool = False) -> None:
        """Write an observed state, and enqueue the jobs of its waiters.

        Args:
            reached: whether the work on the desired state ends with this write, which marks its generation as observed.
            releases_lease: whether to release the lease, because nothing follows in this run.
        """
        generation = self._sandbox.generation if reached else None
        if reached and self._is_written(state):
            return
        waiting: list[Job] = []
        changes: list[BackoffChange] = []
        first = state.status == Status.RUNNING and self._sandbox.ready_at is None
        waits = waiters.WAITING_FOR_BOOT if self._is_rebooted(state) else waiters.WAITING
        with self._context.database.transaction() as session:
            moved = sandbox_status.set_status(
                session, self._sandbox, state, observed_generation=generation, releases_lease=releases_lease
            )
            if first:
                changes = placement.record_result(session, self._sandbox)
            if moved or reached:
                waiting = waiters.enqueue_waiters(session, self._sandbox.id, now(), waits).jobs(self._sandbox.node_id)
        if first:
            self._measure_start()
        log.info("sandbox", sandbox=self._sandbox.id, status=state.status.value, reason=state.reason)
        for change in changes:
            log.warning("node_backoff_changed", spec=self._sandbox.spec_id, **asdict(change))
        self._context.publisher.publish(*waiting)

    def _is_rebooted(self, state: ObservedState) -> bool:
        """Whether the agent server may have been booted again, by a worker or outside: a frozen one was not."""
        row = self._sandbox
        is_same = row.status == Status.RUNNING or row.pause_kind == PauseKind.FROZEN
        is_other = not is_same or sandbox_status.was_restarted(row, state.started_at)
        return state.status == Status.RUNNING and row.ready_at is not None and is_other

    def _measure_start(self) -> None:
        """Measure a start: as a whole, and by phase if this run executed all of it."""
        row, total = self._sandbox, now() - self._sandbox.created_at
        source = StartSource.REFILL if row.owner_id is None else StartSource.POOL if row.boot_key else StartSource.BOOT
        phases = {"total": total.total_seconds()}
        if Action.START in self._action_seconds or source == StartSource.POOL:
            queued = (self._began - row.created_at).total_seconds()
            acted = sum(self._action_seconds.values())
            phases |= self._action_seconds | {"queue": queued, "health": phases["total"] - queued - acted}
        metrics.observe_start(source, phases)
        if source == StartSource.REFILL:
            metrics.observe_refill(row.spec_id, total)

    def _is_written(self, state: ObservedState) -> bool:
        row = self._sandbox
        is_observed = row.generation == row.observed_generation
        is_same = is_observed and not sandbox_status.was_restarted(row, state.started_at)
        return is_same and row.attempt == 0 and state == sandbox_status.read_state(row)
