"""Execution of the planned actions on one sandbox, and one run's observations of its container and agent server."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf

import structlog

from shared.agent_server.errors import AgentServerUnreachable, WrongServer
from shared.container_logs.kept_logs import LogCause
from shared.conversations import queries as conversation_queries
from shared.leasing import leases
from shared.models import Sandbox
from shared.sandboxes.desired_state import CurrentDesiredState
from shared.states import Status
from worker.context import WorkerContext
from worker.engine.protocol import ACT_SECONDS, ContainerState, ContainerStatus, EngineUnavailable, ImageMissing
from worker.lease_renewer import await_watched, run_watched
from worker.sandboxes.agent_server_lifecycle import CHECK_SECONDS, SandboxServer
from worker.sandboxes.container_logs import keep_removed_log
from worker.sandboxes.container_spec import config_path, container_name, container_request, is_outdated, lacks_proxy
from worker.sandboxes.failed_disks import find_repairable
from worker.sandboxes.failed_stops import tolerating_failed_stop
from worker.sandboxes.planner import Action, Health
from worker.sandboxes.status_writer import REMOVE_SECONDS, StatusWriter

log = structlog.get_logger()

MAX_CREATE_SECONDS = 40
# Max waits of one run for the engine to remove a container, and their length in seconds. Later runs continue to wait.
MAX_REMOVAL_WAITS, REMOVAL_SECONDS = 100, 0.1
# Actions that bring the container to the desired state, from any former one.
APPLYING = (Action.START, Action.STOP, Action.PAUSE, Action.UNPAUSE)
# Actions that would give the row's owner the sandbox's files, or remove them.
NEEDS_OWNERSHIP = (Action.CREATE, Action.START, Action.REPLACE, Action.REMOVE)


class DesiredStateChanged(Exception):
    """The desired state has changed during an action for the former one."""


class SandboxActions:
    """Observes and changes the container of one sandbox during one leased run."""

    def __init__(
        self, context: WorkerContext, sandbox: Sandbox, status_writer: StatusWriter, *, is_check: bool
    ) -> None:
        """Take the row as claimed; the status writer keeps it up to date. Probes of a status check are shorter."""
        self._context = context
        self._sandbox = sandbox
        self._status_writer = status_writer
        self._server = SandboxServer(context, sandbox, CHECK_SECONDS if is_check else inf)
        self._name = container_name(sandbox.id)
        # No applying action was executed for the current generation: the container may show a former desired state.
        self.unapplied = sandbox.generation != sandbox.observed_generation
        # At least one action was executed for the current generation in this run.
        self.has_executed = False
        # This run has written the configuration and started the container.
        self._has_started = False
        # This run has sent the init request; before that, a claimed warm sandbox is assumed to await it.
        self._init_requested = False
        # In this run, the agent server accepted its keys or was unpaused with them, and has not booted since.
        self._keys_confirmed = False
        # The observation for which the sandbox's network rules were written last.
        self._admitted: ContainerStatus | None = None
        self._removal_waits = 0
        # The observed container status, valid until the next action; None: ask the engine.
        self._cached_status: ContainerStatus | None = None

    def reset(self) -> None:
        """Reset the flags for a newer generation."""
        self.unapplied, self.has_executed = True, False

    @property
    def may_lack_configuration(self) -> bool:
        """Whether someone else may have started the container before a worker wrote its configuration."""
        return self._sandbox.ready_at is None and not self._has_started

    def find_newer(self) -> CurrentDesiredState | None:
        """Read the desired state. None: this run's generation is the newest.

        Raises:
            LeaseLost: another worker owns the sandbox.
        """
        row, names = self._sandbox, CurrentDesiredState._fields
        current = CurrentDesiredState(*leases.read(self._context.database, Sandbox, row.id, row.fence, names))
        return None if current.generation == row.generation else current

    def observe(self) -> ContainerStatus:
        observed, self._cached_status = self._cached_status or self._context.engine.observe(self._name), None
        return observed

    def await_removal(self) -> None:
        """Wait for the engine to remove the container.

        Raises:
            EngineUnavailable: the removal takes too long for this run.
        """
        self._removal_waits += 1
        if self._removal_waits > MAX_REMOVAL_WAITS:
            raise EngineUnavailable("the engine is still removing the container")
        time.sleep(REMOVAL_SECONDS)

    def probe(self, observed: ContainerStatus) -> Health:
        """The health of the sandbox's agent server, if the plan depends on it.

        Raises:
            WrongServer: another server responds at the URL, or a server that can't be this sandbox's.
            EngineUnavailable: this machine cannot reach its sandboxes.
        """
        if not self._server.is_relevant(unapplied=self.unapplied):
            return Health.SILENT
        if observed.state == ContainerState.RUNNING and observed is not self._admitted:
            self._context.network.admit(self._sandbox, observed)
            self._admitted = observed
        url = self._url(observed) if observed.state == ContainerState.RUNNING else None
        if url is None:
            return Health.SILENT
        if self._server.awaits_init() and not self._init_requested:
            return Health.AWAITING_INIT
        try:
            health = self._server.probe(url, keys_confirmed=self._keys_confirmed)
        except WrongServer:
            self._require_route()
            raise
        if health == Health.SILENT:
            self._require_route()
        return health

    def _require_route(self) -> None:
        """Check, before a response or its absence counts, that the sandbox's address leads to this machine's bridge."""
        if (problem := self._context.network.find_route_problem()) is not None:
            raise EngineUnavailable(problem)

    def is_outdated(self, observed: ContainerStatus) -> bool:
        """Whether another container is needed to run the sandbox."""
        is_mounted = observed.state in (ContainerState.RUNNING, ContainerState.PAUSED)
        if observed.has_lost_network or (is_mounted and self._name in find_repairable(self._context)):
            return True
        endpoint = self._context.network.endpoint
        if endpoint is None or is_outdated(observed, endpoint):
            return is_outdated(observed, endpoint)
        # Its processes have ended, so another environment costs nothing.
        return observed.state == ContainerState.EXITED and lacks_proxy(observed, self._status_writer.spec(), endpoint)

    def execute(self, action: Action, observed: ContainerStatus) -> None:
        """Execute one action.

        Raises:
            ImageMissing: no registry has the image.
            EngineRefused: the engine refuses the action.
            EngineUnavailable: the engine can't execute the action now.
            DesiredStateChanged: the desired state has changed concurrently.
            AgentServerError: the agent server rejects its part of the action, or does not respond.
        """
        owned = action in NEEDS_OWNERSHIP and self._sandbox.status != Status.DELETING
        if owned and self._status_writer.quarantine_foreign(observed):
            raise DesiredStateChanged
        log.info("action", sandbox=self._sandbox.id, action=action.value, generation=self._sandbox.generation)
        with self._status_writer.measuring(action):
            self._perform(action, observed)
        if action in APPLYING:
            self.unapplied = False
            self._keys_confirmed = action == Action.UNPAUSE and self._sandbox.ready_at is not None
        self.has_executed = True

    def _perform(self, action: Action, observed: ContainerStatus) -> None:
        engine = self._context.engine
        match action:
            case Action.CREATE:
                self._status_writer.enter(Status.STARTING)
                self._create()
            case Action.START:
                self._context.network.require_rules(self._sandbox)
                self._status_writer.enter(Status.STARTING)
                engine.put_file(self._name, config_path(observed), self._server.config())
                self._mark_progress()
                engine.start(self._name)
                self._has_started = True
            case Action.INITIALIZE:
                self._initialize(observed)
            case Action.PAUSE:
                self._pause(observed)
            case Action.STOP:
                self._stop(observed)
            case Action.UNPAUSE:
                self._unpause(observed)
            case Action.REPLACE | Action.REMOVE_CONTAINER:
                self._remove(observed, LogCause.REPLACED, engine.remove_container)
            case Action.REMOVE:
                self._status_writer.enter(Status.DELETING)
                self._remove(observed, LogCause.REMOVED, engine.remove)

    def _initialize(self, observed: ContainerStatus) -> None:
        requested_before, self._init_requested = self._init_requested, True
        try:
            self._keys_confirmed = self._server.initialize(self._url(observed) or "")
            self._cached_status = observed
        except (AgentServerUnreachable, WrongServer):
            if requested_before:
                raise
            # The server was assumed, without a probe, to await its init request. It may still be booting; or a worker
            # that died has initialized it, and its init key is no longer valid. The next probe shows which.

    def _create(self) -> None:
        request = container_request(
            self._sandbox,
            self._status_writer.spec(),
            installation=self._context.installation,
            network=self._context.network.endpoint,
            disk_bytes=self._context.settings.sandbox_disk_bytes,
        )
        # An engine that exceeds the client's timeout gets twice the time with each attempt. The first wait is not
        # interrupted: a container created after its sandbox's delete would be a stale container.
        seconds = min(ACT_SECONDS * 2**self._sandbox.attempt, MAX_CREATE_SECONDS)
        create = partial(self._context.engine.create, request, seconds)
        try:
            run_watched(create, self._require_current, first_seconds=ACT_SECONDS)
        except ImageMissing:
            log.info("pulling", sandbox=self._sandbox.id, image=request.image)
            pull = partial(self._context.engine.pull, request.image)
            await_watched(self._context.pulls.begin(request.image, pull), self._require_current)
            run_watched(create, self._require_current, first_seconds=ACT_SECONDS)

    def _require_current(self) -> None:
        """Mark progress, and stop the run if the desired state has changed.

        Raises:
            DesiredStateChanged: the desired state has changed.
            LeaseLost: another worker owns the sandbox.
        """
        self._mark_progress()
        if self.find_newer() is not None:
            raise DesiredStateChanged

    def _mark_progress(self, seconds: float = 0.0) -> None:
        """Mark progress between two calls to the engine: together, they may take longer than a lease without it."""
        self._context.renewer.mark_progress(Sandbox, self._sandbox, seconds)

    def _remove(self, observed: ContainerStatus, cause: LogCause, remove: Callable[[str], None]) -> None:
        if not (was_stopped := self._stop_if_used(observed)):
            self._context.network.revoke_early(self._sandbox, observed)
        keep_removed_log(self._context, self._sandbox, observed, cause)
        self._mark_progress(REMOVE_SECONDS)
        remove(self._name)
        self._mark_progress()
        if not was_stopped:
            self._context.network.revoke(self._sandbox, observed, has_ended=True)

    def _stop_if_used(self, observed: ContainerStatus) -> bool:
        """Let the agent server send its last events before its container is removed; whether that was stopped."""
        if self._sandbox.ready_at is not None and observed.state in (ContainerState.RUNNING, ContainerState.PAUSED):
            with tolerating_failed_stop(self._sandbox):
                self._stop(observed)
                return True
        return False

    def _pause(self, observed: ContainerStatus) -> None:
        """Pause the container, and end its agents' runs first if its owner asked for the pause.

        Otherwise the agents would continue their work after a resume. Deadlines and quotas don't interrupt them: no
        user has asked those agents to stop.
        """
        by_owner = self._sandbox.desired_reason is None
        if by_owner and conversation_queries.are_in(self._context.database, self._sandbox.id):
            self._interrupt_runs(observed)
        self._context.engine.pause(self._name)

    def _unpause(self, observed: ContainerStatus) -> None:
        """Unpause the container.

        If the sandbox was ready before, its agent server's response shows that it runs: the engine isn't queried.
        """
        url = self._url(observed)
        if self._sandbox.ready_at is None or url is None:
            self._context.engine.unpause(self._name)
            return
        self._server.probe_early(url)
        self._context.engine.unpause(self._name)
        self._cached_status = replace(observed, state=ContainerState.RUNNING)

    def _stop(self, observed: ContainerStatus) -> None:
        """Stop the container in order: a paused one is unpaused first, so that its processes receive the signal."""
        self._context.engine.unpause(self._name)
        self._mark_progress()
        self._interrupt_runs(observed)
        self._mark_progress(seconds := self._context.settings.stop_seconds)
        self._context.engine.stop(self._name, seconds)
        self._mark_progress()
        self._context.network.revoke(self._sandbox, observed)

    def _interrupt_runs(self, observed: ContainerStatus) -> None:
        url = self._url(observed)
        if self._sandbox.ready_at is not None and url is not None:
            self._server.interrupt_runs(url)

    def _url(self, observed: ContainerStatus) -> str | None:
        return self._status_writer.agent_url(observed)
