"""The steps that bring one sandbox on, and what a turn knows of its container and server from having taken them."""

from dataclasses import replace
from functools import partial

import structlog

from shared.conversations import queries as conversation_queries
from shared.errors import LeaseLost
from shared.models import Sandbox
from shared.sandboxes import queries as sandbox_queries
from shared.states import Status
from worker.agent_server.errors import AgentServerUnreachable, WrongServer
from worker.context import WorkerContext
from worker.engine.protocol import ACT_SECONDS, ContainerState, ContainerStatus, ImageMissing
from worker.leasing.watched_work import run_watched
from worker.sandboxes.agent_server_lifecycle import SandboxServer
from worker.sandboxes.container_spec import CONFIG_PATH, container_name, container_request
from worker.sandboxes.planner import Action, Health
from worker.sandboxes.status_writer import StatusWriter

log = structlog.get_logger()

MAX_CREATE_SECONDS = 40
# Those after which the container is as the wish has it, whatever was wished of it before.
TELLING = (Action.START, Action.STOP, Action.FREEZE, Action.UNFREEZE)
# Those that would give a sandbox's files to the row's owner, or remove them.
TAKING = (Action.CREATE, Action.START, Action.REMOVE)


class Overtaken(Exception):
    """The desired state has changed while a step for the former one was being taken."""


class SandboxActions:
    """One worker's steps in one turn on one sandbox."""

    def __init__(self, context: WorkerContext, sandbox: Sandbox, settlement: StatusWriter) -> None:
        """Take the row as claimed; it is kept up to date by the settlement."""
        self._context = context
        self._sandbox = sandbox
        self._settlement = settlement
        self._server = SandboxServer(context, sandbox)
        self._name = container_name(sandbox.id)
        # Whether what the container does may still be an answer to an older wish.
        self._fresh = sandbox.generation != sandbox.observed_generation
        self._acted = False
        # Whether it was told, or asked at least: until then, one that was claimed is taken to be dormant.
        self._told = False
        # Whether its agent server has its keys, and has not booted since: from what was done in this turn.
        self._keys_confirmed = False
        # What was seen, while nothing was done to the container since.
        self._seen: ContainerStatus | None = None

    @property
    def fresh(self) -> bool:
        """Whether nothing was done yet that answers the wish."""
        return self._fresh

    @property
    def acted(self) -> bool:
        """Whether anything was done for the wish."""
        return self._acted

    def renew(self) -> None:
        """Begin anew, for a newer wish."""
        self._fresh, self._acted = True, False

    def observe(self) -> ContainerStatus:
        """What is there."""
        observed, self._seen = self._seen or self._context.engine.observe(self._name), None
        return observed

    def listen(self, observed: ContainerStatus) -> Health:
        """What its agent server says, if that matters to the wish.

        Raises:
            WrongServer: something else answers there, or one that can't be this sandbox's.
        """
        if not self._server.is_relevant(fresh=self._fresh):
            return Health.SILENT
        url = self._url(observed) if observed.state == ContainerState.RUNNING else None
        if url is None:
            return Health.SILENT
        if self._server.waits_for_its_owner() and not self._told:
            return Health.DORMANT
        return self._server.listen(url, keys_confirmed=self._keys_confirmed)

    def take(self, step: Action, observed: ContainerStatus) -> None:
        """Do it.

        Raises:
            ImageMissing: the image is nowhere.
            EngineRefused: the engine does not do it.
            EngineUnavailable: the engine can't do it now.
            Overtaken: the desired state has changed meanwhile.
            AgentServerError: the agent server does not.
        """
        if step in TAKING and self._sandbox.status != Status.DELETING and self._settlement.disown(observed):
            raise Overtaken
        log.info("step", sandbox=self._sandbox.id, step=step.value, generation=self._sandbox.generation)
        self._perform(step, observed)
        if step in TELLING:
            self._fresh = False
            self._keys_confirmed = step == Action.UNFREEZE and self._sandbox.ready_at is not None
        self._acted = True

    def _perform(self, step: Action, observed: ContainerStatus) -> None:
        engine = self._context.engine
        match step:
            case Action.CREATE:
                self._settlement.enter(Status.STARTING)
                self._create()
            case Action.START:
                self._settlement.enter(Status.STARTING)
                engine.put_file(self._name, CONFIG_PATH, self._server.config())
                engine.start(self._name)
            case Action.INITIALIZE:
                self._initialize(observed)
            case Action.FREEZE:
                self._freeze(observed)
            case Action.STOP:
                self._stop(observed)
            case Action.UNFREEZE:
                self._unfreeze(observed)
            case Action.DISCARD:
                engine.discard(self._name)
            case Action.REMOVE:
                self._settlement.enter(Status.DELETING)
                self._part_well(observed)
                engine.remove(self._name)

    def _initialize(self, observed: ContainerStatus) -> None:
        said_so, self._told = self._told, True
        try:
            self._keys_confirmed = self._server.initialize(self._url(observed) or "")
            self._seen = observed
        except (AgentServerUnreachable, WrongServer):
            if said_so:
                raise
            # It was taken to be dormant, and not asked. Perhaps it boots once more; or a worker that died told it, and
            # it has dropped its boot key since.

    def _create(self) -> None:
        request = container_request(
            self._sandbox,
            self._settlement.spec(),
            installation=self._context.installation,
            address=self._context.settings.node_address,
        )
        # An engine that needs longer than the client waits is given twice the time with each attempt. Within the first
        # wait it may still answer: a container that came after its sandbox's delete would be a leftover.
        seconds = min(ACT_SECONDS * 2**self._sandbox.attempt, MAX_CREATE_SECONDS)
        create = partial(self._context.engine.create, request, seconds)
        try:
            run_watched(create, self._require_wanted, patience=ACT_SECONDS)
        except ImageMissing:
            log.info("pulling", sandbox=self._sandbox.id, image=request.image)
            run_watched(partial(self._context.engine.pull, request.image), self._require_wanted)
            run_watched(create, self._require_wanted, patience=ACT_SECONDS)

    def _require_wanted(self) -> None:
        """Show that this turn makes progress, and stop it if it is for nothing by now.

        Raises:
            Overtaken: the desired state has changed.
            LeaseLost: another worker owns the sandbox.
        """
        self._context.renewer.mark_progress(Sandbox, self._sandbox)
        newer = sandbox_queries.find_desired(self._context.database, self._sandbox.id, self._sandbox.fence)
        if newer is None:
            raise LeaseLost(f"sandbox {self._sandbox.id}")
        if newer.generation != self._sandbox.generation:
            raise Overtaken

    def _part_well(self, observed: ContainerStatus) -> None:
        """Let the agent server send what it still has before its container goes: best effort."""
        if self._sandbox.ready_at is not None and observed.state in (ContainerState.RUNNING, ContainerState.FROZEN):
            self._stop(observed)

    def _freeze(self, observed: ContainerStatus) -> None:
        """Frozen in the midst of their work, agents would go on with it after a resume: who asks for a pause ends it.

        Deadlines and quotas do not: nobody has asked those agents to stop.
        """
        asked = self._sandbox.wish_reason is None
        if asked and conversation_queries.are_in(self._context.database, self._sandbox.id):
            self._interrupt_runs(observed)
        self._context.engine.freeze(self._name)

    def _unfreeze(self, observed: ContainerStatus) -> None:
        """Thaw it. That one runs which was ready before, its server's answer will tell: the engine isn't asked, too."""
        url = self._url(observed)
        if self._sandbox.ready_at is None or url is None:
            self._context.engine.unfreeze(self._name)
            return
        self._server.ask_ahead(url)
        self._context.engine.unfreeze(self._name)
        self._seen = replace(observed, state=ContainerState.RUNNING)

    def _stop(self, observed: ContainerStatus) -> None:
        """End it in order: what stands still must wake to hear of it."""
        self._context.engine.unfreeze(self._name)
        self._interrupt_runs(observed)
        self._context.engine.stop(self._name, self._context.settings.stop_seconds)

    def _interrupt_runs(self, observed: ContainerStatus) -> None:
        url = self._url(observed)
        if self._sandbox.ready_at is not None and url is not None:
            self._server.interrupt_runs(url)

    def _url(self, observed: ContainerStatus) -> str | None:
        """Where its agent server listens, if it is published."""
        return self._settlement.agent_url(observed)
