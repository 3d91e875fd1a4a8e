"""How a turn on a sandbox ends: its facts written, what waits for it woken, its remains cleared up."""

from dataclasses import asdict

import structlog

from shared.clock import after, now
from shared.instruments import observe_refill
from shared.jobs import CheckSandbox, Job
from shared.models import Sandbox, SandboxSpec
from shared.redaction import redacting
from shared.states import Desired, PauseKind, Reason, Status
from shared.store import followers, quarantine, refusals, sandboxes, specs
from shared.store.known_secrets import redact_for
from shared.store.refusals import Judgement
from shared.store.sandboxes import Fact
from worker.containers import ContainerState, EngineRefused, EngineUnavailable, Observed
from worker.ownership import is_anothers, is_in_doubt, is_in_use
from worker.parts import Parts
from worker.plan import Step
from worker.sandbox_container import AGENT_SERVER, container_name, exposed_urls

log = structlog.get_logger()

LOG_LINES = 30
DEFECT = "the worker failed at it again and again; its log says how"


class Settlement:
    """Writes one sandbox's facts under the lease that its row was claimed with."""

    def __init__(self, parts: Parts, sandbox: Sandbox) -> None:
        """Take the row as claimed; it is kept up to date."""
        self._parts = parts
        self._sandbox = sandbox
        self._name = container_name(sandbox.id)
        # `cached_property` has one lock for all turns before Python 3.12.
        self._spec: SandboxSpec | None = None

    def enter(self, status: Status) -> None:
        """Record a state on the way."""
        if self._sandbox.status != status:
            why = self._wish_reason() if status == Status.DELETING else None
            self._write(Fact(status, why), answered=False)

    def settle(self, step: Step, observed: Observed, *, acted: bool) -> None:
        """Write what the plan has come to; `acted`: this turn has changed something on the way."""
        match step:
            case Step.SETTLE_RUNNING:
                outside = None if self._sandbox.desired == Desired.RUNNING else Reason.RESUMED_OUTSIDE
                self._write(Fact(Status.RUNNING, outside, exposed_urls=self.urls(observed)), lets_go=True)
            case Step.SETTLE_PAUSED:
                kind = PauseKind.FROZEN if observed.state == ContainerState.FROZEN else PauseKind.STOPPED
                self._write(Fact(Status.PAUSED, self._why_paused(kind), pause_kind=kind), lets_go=True)
            case Step.SETTLE_DELETED:
                self.enter(Status.DELETING)
                self._write(Fact(Status.DELETED, self._wish_reason()))
            case _:
                self._fail_by_itself(observed, acted=acted)

    def fail(self, reason: Reason, words: str, observed: Observed) -> None:
        """End in ERROR, with the container's last lines, and clear up; a container that is another's is disowned."""
        if self.disown(observed):
            return
        log.warning("sandbox_failed", sandbox=self._sandbox.id, reason=reason.value)
        detail = "\n".join(part for part in (words, self._last_lines(observed)) if part)
        self._write(Fact(Status.ERROR, reason, detail))
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
        fact = Fact(Status(row.status), reason, words, pause_kind=kind, exposed_urls=row.exposed_urls)
        self._write(fact, answered=False)

    def disown(self, observed: Observed) -> bool:
        """End the row if its container is not what it says (`worker.ownership`); the container goes into quarantine.

        Returns:
            Whether that is so. The row has a new desired state then, which ends it.
        """
        if not is_in_use(self._sandbox, observed) and not self._is_anothers(observed):
            return False
        log.error("sandbox_already_used", sandbox=self._sandbox.id, owner=self._sandbox.owner_id)
        with self._parts.database.transaction() as session:
            quarantine.disown(session, self._sandbox, due_at=after(self._parts.shared.republish_seconds))
        self._parts.publisher.publish(CheckSandbox(self._sandbox.id, self._sandbox.node_id))
        return True

    def agent_url(self, observed: Observed) -> str | None:
        """Where the agent server listens, if its port is published."""
        return next((str(url["url"]) for url in self.urls(observed) if url["name"] == AGENT_SERVER), None)

    def give_up(self) -> None:
        """End in ERROR for a defect of ours. Nothing is cleared up here: that may be what fails."""
        self._write(Fact(Status.ERROR, Reason.INTERNAL_ERROR, DEFECT))

    def urls(self, observed: Observed) -> list[dict[str, str | int]]:
        """The URLs of what is observed."""
        return exposed_urls(self.spec(), observed, self._parts.settings.host_in_urls)

    def spec(self) -> SandboxSpec:
        """What the sandbox is made from, as of this turn."""
        if self._spec is None:
            self._spec = specs.read_spec(self._parts.database, self._sandbox.spec_id)
        return self._spec

    def _why_paused(self, kind: PauseKind) -> Reason | None:
        """Why it is paused, if its owner has not wished that."""
        wished = Desired(self._sandbox.desired)
        ours = wished == Desired.PAUSED or (wished == Desired.STOPPED and kind == PauseKind.STOPPED)
        return self._wish_reason() if ours else Reason.PAUSED_OUTSIDE

    def _wish_reason(self) -> Reason | None:
        return Reason(self._sandbox.wish_reason) if self._sandbox.wish_reason else None

    def _is_anothers(self, observed: Observed) -> bool:
        row = self._sandbox
        return is_in_doubt(row) and is_anothers(self._parts, row, observed, self.agent_url(observed))

    def _fail_by_itself(self, observed: Observed, *, acted: bool) -> None:
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

    def _clear_up(self, observed: Observed) -> None:
        """Leave nothing of a sandbox that never was; keep the files of one that has been used.

        What the engine refuses here must not take the place of the reason: the next comparison tries again.
        """
        try:
            if self._sandbox.ready_at is None:
                self._parts.engine.remove(self._name)
            elif observed.state == ContainerState.RUNNING:
                self._parts.engine.stop(self._name, self._parts.settings.stop_seconds)
        except EngineRefused as error:
            log.warning("not_cleared_up", sandbox=self._sandbox.id, error=str(error))

    def _last_lines(self, observed: Observed) -> str:
        if observed.state == ContainerState.ABSENT:
            return ""
        try:
            text = self._parts.engine.read_log(self._name, LOG_LINES)
        except (EngineUnavailable, EngineRefused):
            return ""
        keys = filter(None, (self._sandbox.session_key, self._sandbox.boot_key))
        return redacting(map(self._parts.vault.decrypt, keys))(self._hide_secrets(text)).strip()

    def _hide_secrets(self, text: str) -> str:
        """An agent server's log may quote what an LLM's provider said, and that its owner's key."""
        if self._sandbox.owner_id is None:
            return text
        with self._parts.database.reading() as session:
            return redact_for(session, self._parts.vault, self._sandbox.owner_id)(text)

    def _write(self, fact: Fact, *, answered: bool = True, lets_go: bool = False) -> None:
        """Write a fact, and wake what waits for it; `lets_go`: nothing follows it."""
        generation = self._sandbox.generation if answered else None
        if answered and self._is_known(fact):
            return
        woken: list[Job] = []
        judged: list[Judgement] = []
        first = fact.status == Status.RUNNING and self._sandbox.ready_at is None
        with self._parts.database.transaction() as session:
            moved = sandboxes.move(session, self._sandbox, fact, observed_generation=generation, lets_go=lets_go)
            if first:
                judged = refusals.judge(session, self._sandbox)
            if moved or answered:
                woken = followers.wake(session, self._sandbox.id, now()).jobs(self._sandbox.node_id)
        if first and self._sandbox.owner_id is None:
            observe_refill(self._sandbox.spec_id, now() - self._sandbox.created_at)
        log.info("sandbox", sandbox=self._sandbox.id, status=fact.status.value, reason=fact.reason)
        for judgement in judged:
            log.warning("node_judged", spec=self._sandbox.spec_id, **asdict(judgement))
        self._parts.publisher.publish(*woken)

    def _is_known(self, fact: Fact) -> bool:
        row = self._sandbox
        told = Fact(Status(row.status), *_told(row), exposed_urls=row.exposed_urls)
        return row.generation == row.observed_generation and row.attempt == 0 and fact == told


def _told(row: Sandbox) -> tuple[Reason | None, str | None, PauseKind | None]:
    reason = Reason(row.reason) if row.reason else None
    return reason, row.detail, PauseKind(row.pause_kind) if row.pause_kind else None
