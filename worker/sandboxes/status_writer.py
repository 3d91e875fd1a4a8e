"""How a turn on a sandbox ends: its facts written, what waits for it woken, its remains cleared up."""

from dataclasses import asdict

import structlog

from shared.clock import after, now
from shared.conversations.known_secrets import redact_for
from shared.leasing import waiters
from shared.models import Sandbox, SandboxSpec
from shared.nodes import spec_backoff
from shared.nodes.spec_backoff import BackoffChange
from shared.observability.metrics import observe_refill
from shared.queue.jobs import CheckSandbox, Job
from shared.redaction import redacting
from shared.sandboxes import quarantine, specs
from shared.sandboxes import status as sandbox_status
from shared.sandboxes.status import ObservedState
from shared.states import Desired, PauseKind, Reason, Status
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState, ContainerStatus, EngineRefused, EngineUnavailable
from worker.sandboxes.container_spec import AGENT_SERVER, container_name, exposed_urls
from worker.sandboxes.ownership import is_anothers, is_in_doubt, is_in_use
from worker.sandboxes.planner import Action

log = structlog.get_logger()

LOG_LINES = 30
DEFECT = "the worker failed at it again and again; its log says how"


class StatusWriter:
    """Writes one sandbox's facts under the lease that its row was claimed with."""

    def __init__(self, context: WorkerContext, sandbox: Sandbox) -> None:
        """Take the row as claimed; it is kept up to date."""
        self._context = context
        self._sandbox = sandbox
        self._name = container_name(sandbox.id)
        # `cached_property` has one lock for all turns before Python 3.12.
        self._spec: SandboxSpec | None = None

    def enter(self, status: Status) -> None:
        """Record a state on the way."""
        if self._sandbox.status != status:
            why = self._wish_reason() if status == Status.DELETING else None
            self._write(ObservedState(status, why), answered=False)

    def settle(self, step: Action, observed: ContainerStatus, *, acted: bool) -> None:
        """Write what the plan has come to; `acted`: this turn has changed something on the way."""
        match step:
            case Action.SETTLE_RUNNING:
                outside = None if self._sandbox.desired == Desired.RUNNING else Reason.RESUMED_OUTSIDE
                self._write(ObservedState(Status.RUNNING, outside, exposed_urls=self.urls(observed)), lets_go=True)
            case Action.SETTLE_PAUSED:
                kind = PauseKind.FROZEN if observed.state == ContainerState.FROZEN else PauseKind.STOPPED
                self._write(ObservedState(Status.PAUSED, self._why_paused(kind), pause_kind=kind), lets_go=True)
            case Action.SETTLE_DELETED:
                self.enter(Status.DELETING)
                self._write(ObservedState(Status.DELETED, self._wish_reason()))
            case _:
                self._fail_by_itself(observed, acted=acted)

    def fail(self, reason: Reason, words: str, observed: ContainerStatus) -> None:
        """End in ERROR, with the container's last lines, and clear up; a container that is another's is disowned."""
        if self.disown(observed):
            return
        log.warning("sandbox_failed", sandbox=self._sandbox.id, reason=reason.value)
        detail = "\n".join(part for part in (words, self._last_lines(observed)) if part)
        self._write(ObservedState(Status.ERROR, reason, detail))
        self._clear_up(observed)

    def explain(self, reason: Reason, words: str) -> None:
        """Say why the desired state isn't reached yet; the status stays what it is.

        That its node is lost stays said: it is what lets another node take over.
        """
        row = self._sandbox
        is_said = row.reason == Reason.NODE_LOST or (row.reason, row.detail) == (reason, words)
        if is_said or row.generation == row.observed_generation:
            return
        kind = PauseKind(row.pause_kind) if row.pause_kind else None
        state = ObservedState(Status(row.status), reason, words, pause_kind=kind, exposed_urls=row.exposed_urls)
        self._write(state, answered=False)

    def disown(self, observed: ContainerStatus) -> bool:
        """End the row if its container belongs to another one (`worker.sandboxes.ownership`): it goes into quarantine.

        Returns:
            Whether that is so. The row has a new desired state then, which ends it.
        """
        if not is_in_use(self._sandbox, observed) and not self._is_anothers(observed):
            return False
        log.error("sandbox_already_used", sandbox=self._sandbox.id, owner=self._sandbox.owner_id)
        with self._context.database.transaction() as session:
            quarantine.disown(session, self._sandbox, due_at=after(self._context.shared.republish_seconds))
        self._context.publisher.publish(CheckSandbox(self._sandbox.id, self._sandbox.node_id))
        return True

    def agent_url(self, observed: ContainerStatus) -> str | None:
        """Where the agent server listens, if its port is published."""
        return next((str(url["url"]) for url in self.urls(observed) if url["name"] == AGENT_SERVER), None)

    def give_up(self) -> None:
        """End in ERROR for a defect of ours. Nothing is cleared up here: that may be what fails."""
        self._write(ObservedState(Status.ERROR, Reason.INTERNAL_ERROR, DEFECT))

    def urls(self, observed: ContainerStatus) -> list[dict[str, str | int]]:
        """The URLs of what is observed."""
        return exposed_urls(self.spec(), observed, self._context.settings.host_in_urls)

    def spec(self) -> SandboxSpec:
        """What the sandbox is made from, as of this turn."""
        if self._spec is None:
            self._spec = specs.read_spec(self._context.database, self._sandbox.spec_id)
        return self._spec

    def _why_paused(self, kind: PauseKind) -> Reason | None:
        """Why it is paused, if its owner has not wished that."""
        wished = Desired(self._sandbox.desired)
        ours = wished == Desired.PAUSED or (wished == Desired.STOPPED and kind == PauseKind.STOPPED)
        return self._wish_reason() if ours else Reason.PAUSED_OUTSIDE

    def _wish_reason(self) -> Reason | None:
        return Reason(self._sandbox.wish_reason) if self._sandbox.wish_reason else None

    def _is_anothers(self, observed: ContainerStatus) -> bool:
        row = self._sandbox
        return is_in_doubt(row) and is_anothers(self._context, row, observed, self.agent_url(observed))

    def _fail_by_itself(self, observed: ContainerStatus, *, acted: bool) -> None:
        """The container ended or went away without our doing."""
        if self._sandbox.status == Status.ERROR and not acted:
            if not self.disown(observed):
                self._clear_up(observed)  # known already; the first reason is the true one
            return
        if observed.state == ContainerState.ABSENT:
            self.fail(Reason.CONTAINER_MISSING, "the container is gone, and not by our doing", observed)
        elif observed.oom_killed:
            self.fail(Reason.OOM_KILLED, "the container ran out of its memory limit", observed)
        else:
            self.fail(Reason.EXIT_CODE, f"the container ended with exit code {observed.exit_code}", observed)

    def _clear_up(self, observed: ContainerStatus) -> None:
        """Leave nothing of a sandbox that never was; keep the files of one that has been used.

        What the engine refuses here must not take the place of the reason: the next comparison tries again.
        """
        try:
            if self._sandbox.ready_at is None:
                self._context.engine.remove(self._name)
            elif observed.state == ContainerState.RUNNING:
                self._context.engine.stop(self._name, self._context.settings.stop_seconds)
        except EngineRefused as error:
            log.warning("not_cleared_up", sandbox=self._sandbox.id, error=str(error))

    def _last_lines(self, observed: ContainerStatus) -> str:
        if observed.state == ContainerState.ABSENT:
            return ""
        try:
            text = self._context.engine.read_log(self._name, LOG_LINES)
        except (EngineUnavailable, EngineRefused):
            return ""
        keys = filter(None, (self._sandbox.session_key, self._sandbox.boot_key))
        return redacting(map(self._context.vault.decrypt, keys))(self._hide_secrets(text)).strip()

    def _hide_secrets(self, text: str) -> str:
        """An agent server's log may quote what an LLM's provider said, and that its owner's key."""
        if self._sandbox.owner_id is None:
            return text
        with self._context.database.reading() as session:
            return redact_for(session, self._context.vault, self._sandbox.owner_id)(text)

    def _write(self, state: ObservedState, *, answered: bool = True, lets_go: bool = False) -> None:
        """Write a fact, and wake what waits for it; `lets_go`: nothing follows it."""
        generation = self._sandbox.generation if answered else None
        if answered and self._is_known(state):
            return
        woken: list[Job] = []
        judged: list[BackoffChange] = []
        first = state.status == Status.RUNNING and self._sandbox.ready_at is None
        with self._context.database.transaction() as session:
            moved = sandbox_status.set_status(
                session, self._sandbox, state, observed_generation=generation, lets_go=lets_go
            )
            if first:
                judged = spec_backoff.record_result(session, self._sandbox)
            if moved or answered:
                woken = waiters.enqueue_waiters(session, self._sandbox.id, now()).jobs(self._sandbox.node_id)
        if first and self._sandbox.owner_id is None:
            observe_refill(self._sandbox.spec_id, now() - self._sandbox.created_at)
        log.info("sandbox", sandbox=self._sandbox.id, status=state.status.value, reason=state.reason)
        for judgement in judged:
            log.warning("node_judged", spec=self._sandbox.spec_id, **asdict(judgement))
        self._context.publisher.publish(*woken)

    def _is_known(self, state: ObservedState) -> bool:
        row = self._sandbox
        told = ObservedState(Status(row.status), *_told(row), exposed_urls=row.exposed_urls)
        return row.generation == row.observed_generation and row.attempt == 0 and state == told


def _told(row: Sandbox) -> tuple[Reason | None, str | None, PauseKind | None]:
    reason = Reason(row.reason) if row.reason else None
    return reason, row.detail, PauseKind(row.pause_kind) if row.pause_kind else None
