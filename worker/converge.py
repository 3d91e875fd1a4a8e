"""From wish to fact: inspect, plan, do one step, look again, until the wish is met or can't be (design, section 4)."""

import time

import structlog

from shared import leases
from shared.errors import LeaseLost
from shared.models import Sandbox
from shared.states import Desired, Reason, Status
from worker.agent_server import AgentServerError, WrongServer
from worker.containers import ContainerState, EngineRefused, ImageMissing, Observed
from worker.parts import Parts
from worker.plan import SETTLING, Step, plan
from worker.sandbox_container import (
    AGENT_SERVER,
    CONFIG_PATH,
    container_name,
    container_request,
    server_config,
)
from worker.settling import Settlement
from worker.turns import TryAgain, take_turns

log = structlog.get_logger()

# Between two probes of a booting agent server, in seconds: tight at first, then easier on the machine.
FIRST_PROBE_SECONDS = 0.02
LAST_PROBE_SECONDS = 0.25
REMOVAL_SECONDS = 0.1
# Steps for one wish: far more than any plan needs, so that a plan that goes round in circles ends.
MOST_STEPS = 12

STEP_REASONS = {Step.CREATE: Reason.CREATE_FAILED, Step.START: Reason.START_FAILED}


def converge(parts: Parts, sandbox_id: str) -> None:
    """Bring a sandbox to what its owner wishes, or to the truth about why not."""
    take_turns(parts, Sandbox, sandbox_id, _converge, _give_up)


class Convergence:
    """One worker's turn on one sandbox."""

    def __init__(self, parts: Parts, sandbox: Sandbox) -> None:
        """Take the row as claimed; its fence is shown with every write."""
        self._parts = parts
        self._sandbox = sandbox
        self._name = container_name(sandbox.id)
        self._settlement = Settlement(parts, sandbox)
        self._fresh = sandbox.generation != sandbox.observed_generation
        self._acted = False
        self._steps = 0
        self._waiting_since: float | None = None
        self._probe_seconds = FIRST_PROBE_SECONDS

    def run(self) -> None:
        """Step until settled.

        Raises:
            TryAgain: the engine refused a step; the next attempt may fare better.
            LeaseLost: another worker owns the sandbox now.
        """
        while self._sandbox.status != Status.DELETED:
            observed = self._parts.engine.observe(self._name)
            try:
                step = self._plan(observed)
            except WrongServer as error:
                self._settlement.fail(Reason.WRONG_SERVER, str(error), observed)
                return
            if self._is_overtaken():
                continue
            if step in SETTLING:
                self._settlement.settle(step, observed, acted=self._acted)
                return
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

    def _is_overtaken(self) -> bool:
        """Look at the row once more before acting: a delete overtakes a start, and a lost lease ends everything."""
        with self._parts.database.reading() as session:
            row = session.get(Sandbox, self._sandbox.id)
        if row is None or row.fence != self._sandbox.fence:
            raise LeaseLost(f"sandbox {self._sandbox.id}")
        if row.generation == self._sandbox.generation:
            return False
        self._adopt(row)
        return True

    def _adopt(self, row: Sandbox) -> None:
        """Go on with the newer wish; what is observed from here on answers it, so it needs no turn of its own."""
        with self._parts.database.transaction() as session:
            leases.write(session, Sandbox, row.id, row.fence, due_at=None)
        self._sandbox.generation, self._sandbox.desired = row.generation, row.desired
        self._fresh, self._acted, self._steps, self._waiting_since = True, False, 0, None

    def _plan(self, observed: Observed) -> Step:
        wish = Desired(self._sandbox.desired)
        healthy = self._needs_health(wish) and self._is_healthy(observed)
        return plan(wish, observed.state, fresh=self._fresh, healthy=healthy, leftovers=observed.leftovers)

    def _needs_health(self, wish: Desired) -> bool:
        return wish == Desired.RUNNING or (wish == Desired.PAUSED and not self._fresh)

    def _is_healthy(self, observed: Observed) -> bool:
        if observed.state != ContainerState.RUNNING:
            return False
        urls = {url["name"]: str(url["url"]) for url in self._settlement.urls(observed)}
        server = AGENT_SERVER in urls and self._parts.agent_server(self._sandbox, urls[AGENT_SERVER])
        return bool(server and server.is_ready())

    # --- steps ----------------------------------------------------------------------------------------------------

    def _take(self, step: Step, observed: Observed) -> bool:
        """Do one step; False when the wish ended in ERROR by it."""
        if step == Step.AWAIT_HEALTH:
            return self._await_health(observed)
        if step == Step.AWAIT_REMOVAL:
            time.sleep(REMOVAL_SECONDS)
            return True
        self._steps += 1
        try:
            self._perform(step, observed)
        except ImageMissing as error:
            self._settlement.fail(Reason.IMAGE_PULL_FAILED, f"the image {self._sandbox.spec_id}: {error}", observed)
            return False
        except EngineRefused as error:
            return self._tolerate(step, str(error), observed)
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
                engine.put_file(self._name, CONFIG_PATH, self._config())
                engine.start(self._name)
            case Step.FREEZE:
                engine.freeze(self._name)
            case Step.UNFREEZE:
                engine.unfreeze(self._name)
            case Step.DISCARD:
                engine.discard(self._name)
            case Step.REMOVE:
                self._settlement.enter(Status.DELETING)
                self._part_well(observed)
                engine.remove(self._name)
        if step in (Step.START, Step.FREEZE, Step.UNFREEZE):
            self._fresh = False
        self._acted = True

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
        waited = time.monotonic() - self._waiting_since
        if waited > self._parts.settings.health_timeout:
            self._settlement.fail(Reason.HEALTH_TIMEOUT, f"no answer from the agent server in {waited:.0f} s", observed)
            return False
        time.sleep(self._probe_seconds)
        self._probe_seconds = min(self._probe_seconds * 1.5, LAST_PROBE_SECONDS)
        return True

    def _part_well(self, observed: Observed) -> None:
        """Let the agent server send what it still has before its container goes: best effort."""
        if self._sandbox.ready_at is None or observed.state not in (ContainerState.RUNNING, ContainerState.FROZEN):
            return
        self._parts.engine.unfreeze(self._name)
        self._interrupt_runs(observed)
        self._parts.engine.stop(self._name, self._parts.settings.stop_seconds)

    def _interrupt_runs(self, observed: Observed) -> None:
        """An agent at work would keep its server from ending in time."""
        urls = {url["name"]: str(url["url"]) for url in self._settlement.urls(observed)}
        server = self._parts.agent_server(self._sandbox, urls.get(AGENT_SERVER))
        try:
            for conversation_id in server.find_running() if server else []:
                server.interrupt(conversation_id) if server else None
        except AgentServerError as error:
            log.info("not_interrupted", sandbox=self._sandbox.id, why=type(error).__name__)

    def _tolerate(self, step: Step, words: str, observed: Observed) -> bool:
        """Take a refusal for a bad moment until there were too many of them; a delete never gives up."""
        last = self._sandbox.attempt + 1 >= self._parts.settings.most_attempts
        if not last or self._sandbox.desired == Desired.DELETED:
            raise TryAgain(f"{step}: {words}")
        self._settlement.fail(STEP_REASONS.get(step, Reason.ENGINE_ERROR), words, observed)
        return False

    def _config(self) -> bytes:
        key = self._parts.vault.decrypt(self._sandbox.session_key)
        return server_config(key, webhook_url=self._parts.shared.webhook_url, origins=[self._parts.shared.public_url])


def _converge(parts: Parts, sandbox: Sandbox) -> None:
    Convergence(parts, sandbox).run()


def _give_up(parts: Parts, sandbox: Sandbox) -> None:
    Convergence(parts, sandbox).give_up()
