"""Health: whether the agent servers of the sandboxes that are said to run still answer."""

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import datetime
from itertools import cycle

import structlog

from shared.models import Sandbox
from shared.sandboxes import queries as sandbox_queries
from worker.agent_server.errors import WrongServer
from worker.context import WorkerContext
from worker.loops.recheck import recheck, report_unresponsive

log = structlog.get_logger()

# The sandboxes are asked in turns, by the first digit of their ids: so the work is spread, and nothing is kept.
TURNS = "0123456789abcdef"
# For probes, each of which has a timeout.
PROBE_THREADS = 16
# For what is to be done about those that are silent: it waits for the engine, and must not keep probes waiting.
SILENCE_THREADS = 4


def open_watch(context: WorkerContext) -> "LivenessMonitor":
    """A watch with threads of its own."""
    return LivenessMonitor(
        context,
        probes=ThreadPoolExecutor(PROBE_THREADS, thread_name_prefix="health"),
        silences=ThreadPoolExecutor(SILENCE_THREADS, thread_name_prefix="silence"),
    )


class LivenessMonitor:
    """Counts how often in a row each agent server did not answer.

    Counted in memory: a worker that starts anew begins to count anew, and each of several counts for itself; nothing
    but patience is lost by either. Rounds are counted, not seconds: a time in which nobody asked is not a silence. No
    round waits for its answers: a slow server delays the probes of no other.
    """

    def __init__(self, context: WorkerContext, *, probes: Executor, silences: Executor) -> None:
        """Begin to count; `probes` are made in the one, and what follows from silences in the other."""
        self._context = context
        self._turns = cycle(TURNS)
        # A row that was written since is a server that was heard since, or another one.
        self._silences: dict[tuple[str, datetime], int] = {}
        self._probes, self._silence_checks = probes, silences
        # Ids: one probe and one check for each sandbox at a time.
        self._probed: set[str] = set()
        self._checked: set[str] = set()

    def look(self) -> None:
        """Have a sixteenth of the servers asked, but for those that are being asked still."""
        digit = next(self._turns)
        with self._context.database.reading() as session:
            rows = sandbox_queries.list_running(session, self._context.settings.node, digit)
        self._forget_others(digit, rows)
        for row in rows:
            if row.id not in self._probed:
                self._probed.add(row.id)
                self._probes.submit(self._probe, row)

    def close(self) -> None:
        """Begin nothing more."""
        for threads in (self._probes, self._silence_checks):
            threads.shutdown(wait=False, cancel_futures=True)

    def _forget_others(self, digit: str, rows: Sequence[Sandbox]) -> None:
        known = {(row.id, row.updated_at) for row in rows}
        for key in list(self._silences):
            if key[0].startswith(digit) and key not in known:
                self._silences.pop(key, None)

    def _probe(self, sandbox: Sandbox) -> None:
        try:
            self._count(sandbox, answered=self._answers(sandbox))
        except Exception as error:  # a defect of ours, in one row: the others are to be asked all the same
            log.exception("not_asked", sandbox=sandbox.id, error=type(error).__name__)
        finally:
            self._probed.discard(sandbox.id)

    def _count(self, sandbox: Sandbox, *, answered: bool) -> None:
        key = (sandbox.id, sandbox.updated_at)
        if answered:
            self._silences.pop(key, None)
            return
        self._silences[key] = times = self._silences.get(key, 0) + 1
        seconds = times * self._context.settings.health_probe_seconds
        if seconds >= self._context.settings.health_timeout and sandbox.id not in self._checked:
            self._checked.add(sandbox.id)
            self._silence_checks.submit(self._check, sandbox.id, seconds)

    def _check(self, sandbox_id: str, seconds: float) -> None:
        try:
            report_unresponsive(self._context, sandbox_id, seconds)
        except Exception as error:  # the next round asks for it again
            log.exception("silence_not_told", sandbox=sandbox_id, error=type(error).__name__)
        finally:
            self._checked.discard(sandbox_id)

    def _answers(self, sandbox: Sandbox) -> bool:
        try:
            server = self._context.agent_server(sandbox)
            return server is not None and server.answers()
        except WrongServer:
            recheck(self._context, sandbox.id)
        return True
