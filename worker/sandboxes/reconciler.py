"""From wish to fact: inspect, plan, do one step, look again, until the wish is met or can't be."""

import time
from functools import partial

import structlog
from sqlmodel import col

from shared.clock import after
from shared.errors import LeaseLost
from shared.models import Sandbox
from shared.queue.jobs import CheckSandbox
from shared.sandboxes import desired_state
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes.queries import CurrentDesiredState
from shared.states import Desired, Reason, Status
from worker.agent_server.errors import AgentServerError, WrongServer
from worker.context import WorkerContext
from worker.engine.protocol import ContainerStatus, EngineError, EngineRefused, EngineUnavailable, ImageMissing
from worker.lease_runner import Retry, run_leased
from worker.sandboxes.actions import Overtaken, SandboxActions
from worker.sandboxes.planner import SETTLING, Action, plan
from worker.sandboxes.readiness_timer import ReadinessTimer
from worker.sandboxes.rescheduling import reschedule
from worker.sandboxes.status_writer import DEFECT, StatusWriter

log = structlog.get_logger()

REMOVAL_SECONDS = 0.1
# So often in a row must another server answer: ports move on between a look at the engine and a question.
MAX_CLOCK_ERROR = 4
WRONG_SECONDS = 0.1
# Steps for one wish: far more than any plan needs, so that a plan that goes round in circles ends.
MAX_STEPS = 12

STEP_REASONS = {
    Action.CREATE: Reason.CREATE_FAILED,
    Action.START: Reason.START_FAILED,
    Action.INITIALIZE: Reason.INITIALIZE_FAILED,
}
ANSWERED = col(Sandbox.generation) == col(Sandbox.observed_generation)
# The wish is met, and nothing follows.
ANSWERS = frozenset({Action.SETTLE_RUNNING, Action.SETTLE_PAUSED})
# What one engine refuses, another may do.
MOVABLE = frozenset({Action.CREATE, Action.START})
# What brings a sandbox to rest, or away: else it would go on to cost what its owner has ended.
ENDING = frozenset({Action.FREEZE, Action.STOP, Action.REMOVE})


def reconcile(context: WorkerContext, sandbox_id: str) -> None:
    """Bring a sandbox to what its owner wishes, or to the truth about why not."""
    run_leased(context, Sandbox, sandbox_id, _reconcile, _give_up)


def refresh_status(context: WorkerContext, sandbox_id: str, silent_seconds: float = 0.0) -> bool:
    """Write down what has become of a sandbox whose wish was answered: no step is taken, nothing is waited for.

    Args:
        silent_seconds: for how long its agent server is known not to have answered.

    Returns:
        Whether that was all there is to do; if not, `converge` must see to it.
    """
    work = partial(_glance, silent_seconds=silent_seconds)
    return run_leased(context, Sandbox, sandbox_id, work, _give_up, only=ANSWERED)


class SandboxReconciler:
    """One worker's turn on one sandbox."""

    def __init__(
        self, context: WorkerContext, sandbox: Sandbox, *, glancing: bool = False, silent_seconds: float = 0.0
    ) -> None:
        """Take the row as claimed; its fence is shown with every write."""
        self._context = context
        self._sandbox = sandbox
        self._settlement = StatusWriter(context, sandbox)
        self._steps = SandboxActions(context, sandbox, self._settlement)
        self._health_wait = ReadinessTimer(context.settings.health_timeout, silent_seconds)
        self._glancing = glancing
        # Whether a step was taken since the fence was last seen to be ours.
        self._stepped = False
        self._taken = 0
        self._wrong = 0

    def run(self) -> None:
        """Step until settled.

        Raises:
            Retry: the engine refused a step or is in trouble, and the next attempt may fare better; or this was to
                be a glance only, and there is more to do.
            LeaseLost: another worker owns the sandbox now.
        """
        try:
            self._run()
        except LeaseLost:
            if self._stepped:
                self._bump_generation()
            raise

    def _run(self) -> None:
        try:
            self._step_until_settled()
        except EngineError as error:
            # Some questions are asked outside of any step: what is refused there may be answered later.
            words = f"the engine can't do it now and is asked again: {error}"
            self._settlement.explain(Reason.ENGINE_ERROR, words)
            # The desired state stands for as long as the engine is in trouble: attempts are counted for the backoff
            # only, and leave one for a refusal.
            raise Retry(words, counts=self._sandbox.attempt < self._context.settings.max_attempts - 2) from None

    def _step_until_settled(self) -> None:
        while self._sandbox.status != Status.DELETED:
            self._context.renewer.mark_progress(Sandbox, self._sandbox)
            observed = self._steps.observe()
            try:
                step = self._plan(observed)
            except WrongServer as error:
                if self._is_overtaken() or self._is_another_chance():
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
                self._settlement.settle(step, observed, acted=self._steps.acted)
                return
            if self._glancing and not (step == Action.AWAIT_HEALTH and self._health_wait.is_over):
                raise Retry(f"{step} is more than a glance", seconds=0, counts=False)
            if not self._take(step, observed):
                return

    def give_up(self) -> None:
        """Say that a defect of ours is in the way. Only a start or a resume ends by it.

        Raises:
            Retry: the sandbox is to be paused, stopped or deleted.
        """
        if self._sandbox.desired == Desired.RUNNING:
            self._settlement.give_up()
            return
        self._settlement.explain(Reason.INTERNAL_ERROR, DEFECT)
        raise Retry("a pause, a stop or a delete never gives up")

    def _answer(self, step: Action, observed: ContainerStatus) -> bool:
        """Settle by a write that shows the wish it answers, too: that spares the look before it. False: overtaken."""
        try:
            self._settlement.settle(step, observed, acted=self._steps.acted)
        except LeaseLost:
            if not self._is_overtaken():
                raise
            return False
        return True

    def _is_another_chance(self) -> bool:
        """Whether to look again: while we stood still, the port that we saw may have become somebody else's."""
        self._wrong += 1
        if self._wrong >= MAX_CLOCK_ERROR:
            return False
        time.sleep(WRONG_SECONDS)
        return True

    def _is_overtaken(self) -> bool:
        """Look at the row once more before acting: a delete overtakes a start, and a lost lease ends everything."""
        newer = sandbox_queries.find_desired(self._context.database, self._sandbox.id, self._sandbox.fence)
        if newer is None:
            raise LeaseLost(f"sandbox {self._sandbox.id}")
        self._stepped = False
        if newer.generation == self._sandbox.generation:
            return False
        self._adopt(newer)
        return True

    def _bump_generation(self) -> None:
        """Our last step may have come after the next worker's: no fence keeps the engine from taking it.

        What it may have undone would look like an operator's doing, so what is wished is wished once more.
        """
        due_at = after(self._context.shared.republish_seconds)
        with self._context.database.transaction() as session:
            wished = desired_state.bump_generation(session, self._sandbox.id, due_at=due_at)
        log.warning("stepped_late", sandbox=self._sandbox.id, wished_again=wished)
        self._context.publisher.publish(CheckSandbox(self._sandbox.id, self._sandbox.node_id))

    def _adopt(self, newer: CurrentDesiredState) -> None:
        """Go on with the newer wish; what is observed from here on answers it, so it needs no turn of its own."""
        with self._context.database.transaction() as session:
            desired_state.acknowledge(session, self._sandbox.id, self._sandbox.fence, newer.generation)
        for name, value in newer._asdict().items():
            setattr(self._sandbox, name, value)
        self._taken = 0
        self._steps.renew()
        self._health_wait.renew()

    def _plan(self, observed: ContainerStatus) -> Action:
        if self._sandbox.desired == Desired.DELETED and self._sandbox.wish_reason == Reason.ALREADY_USED:
            return Action.SETTLE_DELETED  # what is there is left to the quarantine
        health, wish = self._steps.listen(observed), Desired(self._sandbox.desired)
        return plan(wish, observed.state, fresh=self._steps.fresh, health=health, leftovers=observed.leftovers)

    def _take(self, step: Action, observed: ContainerStatus) -> bool:
        """Do one step; False when the wish ended in ERROR by it."""
        if step == Action.AWAIT_HEALTH:
            return self._await_health(observed)
        if step == Action.AWAIT_REMOVAL:
            time.sleep(REMOVAL_SECONDS)
            return True
        self._taken += 1
        self._stepped = True
        try:
            self._steps.take(step, observed)
        except Overtaken:
            return True
        except EngineUnavailable as error:
            if step in MOVABLE and reschedule(self._context, self._sandbox, str(error)):
                return False
            raise
        except (AgentServerError, ImageMissing, EngineRefused) as error:
            return self._bear(step, error, observed)
        if self._taken > MAX_STEPS:
            raise Retry(f"{step} does not get anywhere")
        return True

    def _await_health(self, observed: ContainerStatus) -> bool:
        self._health_wait.begin()
        if self._health_wait.is_over:
            words = f"no answer from the agent server in {self._health_wait.waited:.0f} s"
            self._settlement.fail(Reason.HEALTH_TIMEOUT, words, observed)
            return False
        self._health_wait.pause()
        return True

    def _bear(self, step: Action, error: Exception, observed: ContainerStatus) -> bool:
        """Hand it on to a node that fares better, or try again, or end in ERROR: False."""
        if step in MOVABLE and reschedule(self._context, self._sandbox, str(error)):
            return False
        if not isinstance(error, ImageMissing):
            return self._tolerate(step, str(error), observed)
        self._settlement.fail(Reason.IMAGE_PULL_FAILED, f"the image {self._sandbox.spec_id}: {error}", observed)
        return False

    def _tolerate(self, step: Action, words: str, observed: ContainerStatus) -> bool:
        """Take a refusal for a bad moment until there were too many of them. What ends something never gives up."""
        last = self._sandbox.attempt + 1 >= self._context.settings.max_attempts
        if not last or step in ENDING:
            self._settlement.explain(Reason.ENGINE_ERROR, f"{step} is tried again: {words}")
            raise Retry(f"{step}: {words}")
        self._settlement.fail(STEP_REASONS.get(step, Reason.ENGINE_ERROR), words, observed)
        return False


def _reconcile(context: WorkerContext, sandbox: Sandbox) -> None:
    SandboxReconciler(context, sandbox).run()


def _glance(context: WorkerContext, sandbox: Sandbox, *, silent_seconds: float) -> None:
    SandboxReconciler(context, sandbox, glancing=True, silent_seconds=silent_seconds).run()


def _give_up(context: WorkerContext, sandbox: Sandbox) -> None:
    SandboxReconciler(context, sandbox).give_up()
