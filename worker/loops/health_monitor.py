"""Health monitor: probes the agent servers of running sandboxes."""

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import datetime
from itertools import cycle
from time import monotonic

import structlog

from shared.agent_server.door import CONTAINER_PATH, is_door_path, split_url
from shared.agent_server.errors import DoorUnavailable, WrongServer
from shared.crypto import MissingKey
from shared.models import Sandbox
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes.status import agent_server
from worker.agent_server.client import AgentServer
from worker.context import WorkerContext
from worker.loops.recheck import recheck, report_unresponsive
from worker.sandboxes.agent_server_lifecycle import NotAwaitingInit

log = structlog.get_logger()

# Sandboxes are probed in sixteen shards, by the first digit of their ids. This spreads the load without stored state.
SHARDS = "0123456789abcdef"
# Threads for the checks of unresponsive servers. A check that takes long continues in another thread.
CHECK_THREADS = 4
# One lost response is no failure, however long the pause before it.
MIN_FAILED_PROBES = 2
CUT_OFF = (
    "no running sandbox's address responds, so their silence is no failure: look for a firewall rule on this machine, "
    "or a full table of connections (`nf_conntrack: table full` in the kernel's log)"
)


def open_monitor(context: WorkerContext) -> "LivenessMonitor":
    """Create a monitor with its own threads: for probes, as many as a node may have sandboxes, created when needed."""
    return LivenessMonitor(
        context,
        probes=ThreadPoolExecutor(context.settings.node_capacity, thread_name_prefix="health"),
        checks=ThreadPoolExecutor(CHECK_THREADS, thread_name_prefix="unresponsive"),
    )


class LivenessMonitor:
    """Counter of each agent server's consecutive failed probes.

    The counts are in memory: a restarted worker counts from zero, and each worker of a node counts for itself. Both
    only delay the detection. Probes are counted, not seconds: a time without probes is not a failure. Neither is a
    probe that the node's door does not forward, nor one while no sandbox's address responds (decision 79). The monitor
    never waits for responses: a slow server does not delay the probes of other servers.
    """

    def __init__(self, context: WorkerContext, *, probes: Executor, checks: Executor) -> None:
        """Create a monitor that runs probes and checks of unresponsive servers on these executors."""
        self._context = context
        self._shards = cycle(SHARDS)
        # Failed probes by sandbox id and `updated_at`: a write to the row resets the count.
        self._failures: dict[tuple[str, datetime], int] = {}
        # Monotonic times: when a sandbox, or at least the kernel at its address, last responded, and when none did.
        self._heard_at = self._cut_off_at = 0.0
        self._probes, self._checks = probes, checks
        # Ids of sandboxes with a pending probe or check: at most one of each per sandbox.
        self._probed: set[str] = set()
        self._checked: set[str] = set()

    def probe_next_shard(self) -> None:
        """Start probes of a sixteenth of the servers, except those whose last probe is still pending.

        Rows that are due or leased are not probed either. Their counts stay: most status checks write nothing.
        """
        digit = next(self._shards)
        with self._context.database.reading() as session:
            rows = sandbox_queries.list_running(session, self._context.settings.node, digit)
        self._remove_outdated_counts(digit, rows)
        for row in rows:
            if row.id not in self._probed and not (row.due_at or row.lease_until):
                self._probed.add(row.id)
                self._probes.submit(self._probe, row)

    def find_cut_off(self) -> str | None:
        """Why the silence of this node's sandboxes does not count at present; None: it does, or none is silent."""
        is_recent = monotonic() < self._cut_off_at + 2 * self._context.settings.health_probe_seconds
        return CUT_OFF if is_recent and self._cut_off_at > self._heard_at else None

    def close(self) -> None:
        """Cancel pending probes and checks, and start no more."""
        for executor in (self._probes, self._checks):
            executor.shutdown(wait=False, cancel_futures=True)

    def _remove_outdated_counts(self, digit: str, rows: Sequence[Sandbox]) -> None:
        known = {(row.id, row.updated_at) for row in rows}
        for key in list(self._failures):
            if key[0].startswith(digit) and key not in known:
                self._failures.pop(key, None)

    def _probe(self, sandbox: Sandbox) -> None:
        try:
            is_healthy = self._is_healthy(sandbox)
            if problem := self._find_problem(sandbox, is_healthy=is_healthy):
                log.debug("not_probed", sandbox=sandbox.id, why=problem)
                return
            self._record(sandbox, is_healthy=is_healthy)
        except (DoorUnavailable, MissingKey) as error:  # no server's failure: the heartbeat reports it
            log.debug("not_probed", sandbox=sandbox.id, why=str(error))
        except Exception as error:  # a bug in this service with one row: the probes of other rows continue
            log.exception("probe_failed", sandbox=sandbox.id, error=type(error).__name__)
        finally:
            self._probed.discard(sandbox.id)

    def _find_problem(self, sandbox: Sandbox, *, is_healthy: bool) -> str | None:
        """Why a failed probe does not count: this machine does not reach its sandboxes. The heartbeat reports it."""
        if is_healthy:
            self._heard_at = monotonic()
            return None
        return self._context.network.find_route_problem() or self._find_silence(sandbox)

    def _find_silence(self, sandbox: Sandbox) -> str | None:
        """Return `CUT_OFF` if neither this sandbox's address nor, since its last probe, another sandbox responded."""
        match = CONTAINER_PATH.match(split_url(agent_server(sandbox.exposed_urls) or "")[1])
        if match is None or self._context.network.reaches(match[1]):
            self._heard_at = monotonic()
        elif monotonic() >= self._heard_at + self._context.settings.health_probe_seconds:
            self._cut_off_at = monotonic()
            return CUT_OFF
        return None

    def _record(self, sandbox: Sandbox, *, is_healthy: bool) -> None:
        key = (sandbox.id, sandbox.updated_at)
        if is_healthy:
            self._failures.pop(key, None)
            return
        self._failures[key] = times = self._failures.get(key, 0) + 1
        seconds = times * self._context.settings.health_probe_seconds
        is_silent = times >= MIN_FAILED_PROBES and seconds >= self._context.settings.health_timeout
        if is_silent and sandbox.id not in self._checked:
            self._checked.add(sandbox.id)
            self._checks.submit(self._check, sandbox.id, seconds)

    def _check(self, sandbox_id: str, seconds: float) -> None:
        try:
            report_unresponsive(self._context, sandbox_id, seconds)
        except Exception as error:  # the next failed probe retries the check
            log.exception("unresponsive_not_reported", sandbox=sandbox_id, error=type(error).__name__)
        finally:
            self._checked.discard(sandbox_id)

    def _is_healthy(self, sandbox: Sandbox) -> bool:
        if self._has_door_moved(sandbox):
            recheck(self._context, sandbox.id)
        server = self._context.agent_server(sandbox)
        try:
            return server is not None and _responds(server, sandbox)
        except WrongServer:
            recheck(self._context, sandbox.id)
        return True

    def _has_door_moved(self, sandbox: Sandbox) -> bool:
        """Whether the row has a former address of this node's door."""
        door, path, _ = split_url(agent_server(sandbox.exposed_urls) or "")
        return is_door_path(path) and door != self._context.settings.door_url


def _responds(server: AgentServer, sandbox: Sandbox) -> bool:
    """Whether the sandbox's server responds. A warm sandbox's awaits its init request: its other routes are a 503.

    Raises:
        WrongServer: another server listens at the address, or a warm sandbox's server awaits no init request.
    """
    if sandbox.owner_id is not None:
        return server.accepts_key()
    awaits_init = server.is_dormant()
    if awaits_init is False:
        raise NotAwaitingInit("the agent server does not await an init request")
    return awaits_init is not None
