"""From wish to fact: inspect, plan, do one step, look again, until the wish is met or can't be (design, section 4)."""

import time
from functools import partial

import structlog
from sqlmodel import col

from shared import leases
from shared.clock import after
from shared.errors import LeaseLost
from shared.jobs import CheckSandbox
from shared.models import Sandbox
from shared.states import Desired, Reason, Status
from shared.store import sandboxes
from worker.agent_server import AgentServerError, AgentServerUnreachable, WrongServer
from worker.containers import ContainerState, EngineRefused, ImageMissing, Observed
from worker.handing_on import hand_on
from worker.parts import Parts
from worker.plan import SETTLING, Health, Step, plan
from worker.sandbox_container import AGENT_SERVER, CONFIG_PATH, container_name, container_request
from worker.sandbox_server import SandboxServer
from worker.settling import Settlement
from worker.turns import TryAgain, take_turns

log = structlog.get_logger()

# Between two probes of a booting agent server, in seconds: tight at first, then easier on the machine.
FIRST_PROBE_SECONDS = 0.02
LAST_PROBE_SECONDS = 0.25
REMOVAL_SECONDS = 0.1
# So often in a row must another server answer: ports move on between a look at the engine and a question.
MOST_WRONG = 4
WRONG_SECONDS = 0.1
# Steps for one wish: far more than any plan needs, so that a plan that goes round in circles ends.
MOST_STEPS = 12

STEP_REASONS = {
    Step.CREATE: Reason.CREATE_FAILED,
    Step.START: Reason.START_FAILED,
    Step.INITIALIZE: Reason.INITIALIZE_FAILED,
}
# The wish is met, and nothing follows.
ANSWERS = frozenset({Step.SETTLE_RUNNING, Step.SETTLE_PAUSED})
# What one engine refuses, another may do.
MOVABLE = frozenset({Step.CREATE, Step.START})


def converge(parts: Parts, sandbox_id: str) -> None:
    """Bring a sandbox to what its owner wishes, or to the truth about why not."""
    take_turns(parts, Sandbox, sandbox_id, _converge, _give_up)


def glance(parts: Parts, sandbox_id: str, silent_seconds: float = 0.0) -> bool:
    """Write down what has become of a sandbox whose wish was answered: no step is taken, nothing is waited for.

    Args:
        silent_seconds: for how long its agent server is known not to have answered.

    Returns:
        Whether that was all there is to do; if not, `converge` must see to it.
    """
    answered = col(Sandbox.generation) == col(Sandbox.observed_generation)
    work = partial(_glance, silent_seconds=silent_seconds)
    return take_turns(parts, Sandbox, sandbox_id, work, _give_up, only=answered)


class Convergence:
    """One worker's turn on one sandbox."""

    def __init__(self, parts: Parts, sandbox: Sandbox, *, glancing: bool = False, silent_seconds: float = 0.0) -> None:
        """Take the row as claimed; its fence is shown with every write."""
        self._parts = parts
        self._sandbox = sandbox
        self._name = container_name(sandbox.id)
        self._settlement = Settlement(parts, sandbox)
        self._server = SandboxServer(parts, sandbox)
        self._glancing = glancing
        self._silent_seconds = silent_seconds
        self._fresh = sandbox.generation != sandbox.observed_generation
        self._acted = False
        # Whether it was told, or asked at least: until then, one that was claimed is taken to be dormant.
        self._told = False
        # Whether its agent server has its keys, and has not booted since: from what was done in this turn.
        self._vouched = False
        # What was seen, while nothing was done to the container since.
        self._seen: Observed | None = None
        # Whether a step was taken since the fence was last seen to be ours.
        self._stepped = False
        self._steps = 0
        self._wrong = 0
        self._waiting_since: float | None = None
        self._probe_seconds = FIRST_PROBE_SECONDS

    def run(self) -> None:
        """Step until settled.

        Raises:
            TryAgain: the engine refused a step, and the next attempt may fare better; or this was to be a glance only,
                and there is more to do.
            LeaseLost: another worker owns the sandbox now.
        """
        try:
            self._run()
        except LeaseLost:
            if self._stepped:
                self._wish_again()
            raise

    def _run(self) -> None:
        while self._sandbox.status != Status.DELETED:
            observed, self._seen = self._seen or self._parts.engine.observe(self._name), None
            try:
                step = self._plan(observed)
            except WrongServer as error:
                if self._is_another_chance():
                    continue
                self._settlement.fail(Reason(error.reason), str(error), observed)
                return
            self._wrong = 0
            if step in ANSWERS:
                if self._answer(step, observed):
                    return
                continue
            if self._is_overtaken():
                continue
            if step in SETTLING:
                self._settlement.settle(step, observed, acted=self._acted)
                return
            if self._glancing and not (step == Step.AWAIT_HEALTH and self._is_out_of_patience()):
                raise TryAgain(f"{step} is more than a glance", seconds=0, counts=False)
            if not self._take(step, observed):
                return

    def give_up(self) -> None:
        """Say that a defect of ours is in the way. A delete is tried for ever.

        Raises:
            TryAgain: the sandbox is to be deleted.
        """
        if self._sandbox.desired == Desired.DELETED:
            raise TryAgain("a delete never gives up")
        self._settlement.give_up()

    def _answer(self, step: Step, observed: Observed) -> bool:
        """Settle by a write that shows the wish it answers, too: that spares the look before it. False: overtaken."""
        try:
            self._settlement.settle(step, observed, acted=self._acted)
        except LeaseLost:
            if not self._is_overtaken():
                raise
            return False
        return True

    def _is_another_chance(self) -> bool:
        """Whether to look again: while we stood still, the port that we saw may have become somebody else's."""
        self._wrong += 1
        if self._wrong >= MOST_WRONG:
            return False
        time.sleep(WRONG_SECONDS)
        return True

    def _is_overtaken(self) -> bool:
        """Look at the row once more before acting: a delete overtakes a start, and a lost lease ends everything."""
        with self._parts.database.reading() as session:
            row = session.get(Sandbox, self._sandbox.id)
        if row is None or row.fence != self._sandbox.fence:
            raise LeaseLost(f"sandbox {self._sandbox.id}")
        self._stepped = False
        if row.generation == self._sandbox.generation:
            return False
        self._adopt(row)
        return True

    def _wish_again(self) -> None:
        """Our last step may have come after the next worker's: no fence keeps the engine from taking it.

        What it may have undone would look like an operator's doing, so what is wished is wished once more.
        """
        due_at = after(self._parts.shared.republish_seconds)
        with self._parts.database.transaction() as session:
            wished = sandboxes.wish_again(session, self._sandbox.id, due_at=due_at)
        log.warning("stepped_late", sandbox=self._sandbox.id, wished_again=wished)
        self._parts.publisher.publish(CheckSandbox(self._sandbox.id, self._sandbox.node_id))

    def _adopt(self, row: Sandbox) -> None:
        """Go on with the newer wish; what is observed from here on answers it, so it needs no turn of its own."""
        with self._parts.database.transaction() as session:
            leases.write(session, Sandbox, row.id, row.fence, due_at=None)
        for name in ("generation", "desired", "wish_reason"):
            setattr(self._sandbox, name, getattr(row, name))
        self._fresh, self._acted, self._steps = True, False, 0
        self._waiting_since, self._silent_seconds = None, 0.0

    def _plan(self, observed: Observed) -> Step:
        health = self._listen(observed) if self._server.is_heeded(fresh=self._fresh) else Health.SILENT
        wish = Desired(self._sandbox.desired)
        return plan(wish, observed.state, fresh=self._fresh, health=health, leftovers=observed.leftovers)

    def _listen(self, observed: Observed) -> Health:
        url = self._url(observed) if observed.state == ContainerState.RUNNING else None
        if url is None:
            return Health.SILENT
        if self._server.waits_for_its_owner() and not self._told:
            return Health.DORMANT
        return self._server.listen(url, vouched=self._vouched)

    def _url(self, observed: Observed) -> str | None:
        """Where its agent server listens, if it is published."""
        return next((str(url["url"]) for url in self._settlement.urls(observed) if url["name"] == AGENT_SERVER), None)

    # --- steps ----------------------------------------------------------------------------------------------------

    def _take(self, step: Step, observed: Observed) -> bool:
        """Do one step; False when the wish ended in ERROR by it."""
        if step == Step.AWAIT_HEALTH:
            return self._await_health(observed)
        if step == Step.AWAIT_REMOVAL:
            time.sleep(REMOVAL_SECONDS)
            return True
        self._steps += 1
        self._stepped = True
        try:
            self._perform(step, observed)
        except (AgentServerError, ImageMissing, EngineRefused) as error:
            return self._bear(step, error, observed)
        if self._steps > MOST_STEPS:
            raise TryAgain(f"{step} does not get anywhere")
        return True

    def _perform(self, step: Step, observed: Observed) -> None:
        log.info("step", sandbox=self._sandbox.id, step=step.value, generation=self._sandbox.generation)
        engine = self._parts.engine
        match step:
            case Step.CREATE:
                self._settlement.enter(Status.STARTING)
                self._create()
            case Step.START:
                self._settlement.enter(Status.STARTING)
                engine.put_file(self._name, CONFIG_PATH, self._server.config())
                engine.start(self._name)
            case Step.INITIALIZE:
                self._initialize(observed)
            case Step.FREEZE:
                engine.freeze(self._name)
            case Step.STOP:
                self._stop(observed)
            case Step.UNFREEZE:
                engine.unfreeze(self._name)
            case Step.DISCARD:
                engine.discard(self._name)
            case Step.REMOVE:
                self._settlement.enter(Status.DELETING)
                self._part_well(observed)
                engine.remove(self._name)
        if step in (Step.START, Step.STOP, Step.FREEZE, Step.UNFREEZE):
            self._fresh = False
            self._vouched = step == Step.UNFREEZE and self._sandbox.ready_at is not None
        self._acted = True

    def _initialize(self, observed: Observed) -> None:
        said_so, self._told = self._told, True
        try:
            self._vouched = self._server.initialize(self._url(observed) or "")
            self._seen = observed
        except AgentServerUnreachable:
            if said_so:
                raise
            # It was taken to be dormant, and not asked: perhaps it boots once more.

    def _create(self) -> None:
        request = container_request(
            self._sandbox,
            self._settlement.spec(),
            installation=self._parts.installation,
            address=self._parts.settings.node_address,
        )
        try:
            self._parts.engine.create(request)
        except ImageMissing:
            log.info("pulling", sandbox=self._sandbox.id, image=request.image)
            self._parts.engine.pull(request.image)
            self._parts.engine.create(request)

    def _await_health(self, observed: Observed) -> bool:
        if self._waiting_since is None:
            self._waiting_since, self._probe_seconds = time.monotonic(), FIRST_PROBE_SECONDS
        if self._is_out_of_patience():
            words = f"no answer from the agent server in {self._waited():.0f} s"
            self._settlement.fail(Reason.HEALTH_TIMEOUT, words, observed)
            return False
        time.sleep(self._probe_seconds)
        self._probe_seconds = min(self._probe_seconds * 1.5, LAST_PROBE_SECONDS)
        return True

    def _is_out_of_patience(self) -> bool:
        return self._waited() >= self._parts.settings.health_timeout

    def _waited(self) -> float:
        """Seconds without an answer, those before this turn among them."""
        here = 0.0 if self._waiting_since is None else time.monotonic() - self._waiting_since
        return self._silent_seconds + here

    def _part_well(self, observed: Observed) -> None:
        """Let the agent server send what it still has before its container goes: best effort."""
        if self._sandbox.ready_at is not None and observed.state in (ContainerState.RUNNING, ContainerState.FROZEN):
            self._stop(observed)

    def _stop(self, observed: Observed) -> None:
        """End it in order: what stands still must wake to hear of it."""
        self._parts.engine.unfreeze(self._name)
        url = self._url(observed)
        if self._sandbox.ready_at is not None and url is not None:
            self._server.interrupt_runs(url)
        self._parts.engine.stop(self._name, self._parts.settings.stop_seconds)

    def _bear(self, step: Step, error: Exception, observed: Observed) -> bool:
        """Hand it on to a node that fares better, or try again, or end in ERROR: False."""
        if step in MOVABLE and hand_on(self._parts, self._sandbox, str(error)):
            return False
        if not isinstance(error, ImageMissing):
            return self._tolerate(step, str(error), observed)
        self._settlement.fail(Reason.IMAGE_PULL_FAILED, f"the image {self._sandbox.spec_id}: {error}", observed)
        return False

    def _tolerate(self, step: Step, words: str, observed: Observed) -> bool:
        """Take a refusal for a bad moment until there were too many of them; a delete never gives up."""
        last = self._sandbox.attempt + 1 >= self._parts.settings.most_attempts
        if not last or self._sandbox.desired == Desired.DELETED:
            raise TryAgain(f"{step}: {words}")
        self._settlement.fail(STEP_REASONS.get(step, Reason.ENGINE_ERROR), words, observed)
        return False


def _converge(parts: Parts, sandbox: Sandbox) -> None:
    Convergence(parts, sandbox).run()


def _glance(parts: Parts, sandbox: Sandbox, *, silent_seconds: float) -> None:
    Convergence(parts, sandbox, glancing=True, silent_seconds=silent_seconds).run()


def _give_up(parts: Parts, sandbox: Sandbox) -> None:
    Convergence(parts, sandbox).give_up()
