"""Health: whether the agent servers of the sandboxes that are said to run still answer."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import datetime
from itertools import cycle

import structlog

from shared.models import Sandbox
from shared.store import sandboxes
from worker.agent_server_errors import WrongServer
from worker.looks import look, tell_silence
from worker.parts import Parts

log = structlog.get_logger()

# The sandboxes are asked in turns, by the first digit of their ids: so the work is spread, and nothing is kept.
TURNS = "0123456789abcdef"
THREADS = 16
# More than a probe may take by its own limits: a server that sends its answer byte by byte is silent, too.
TURN_SECONDS = 10.0


class HealthWatch:
    """Counts how often in a row each agent server did not answer.

    Counted in memory: a worker that starts anew begins to count anew, and each of several counts for itself; nothing
    but patience is lost by either. Rounds are counted, not seconds: a time in which nobody asked is not a silence.
    """

    def __init__(self, parts: Parts) -> None:
        """Begin to count."""
        self._parts = parts
        self._turns = cycle(TURNS)
        self._silences: dict[str, dict[tuple[str, datetime], int]] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="health")

    def look(self) -> None:
        """Ask a sixteenth of the servers, and have it told of those that have been silent for too long."""
        digit = next(self._turns)
        with self._parts.database.reading() as session:
            rows = sandboxes.said_to_run(session, self._parts.settings.node, digit)
        silences = self._count(self._silences.get(digit, {}), self._ask(rows))
        self._silences[digit] = silences
        seconds = {row_id: times * self._parts.settings.probe_seconds for (row_id, _), times in silences.items()}
        over = [row_id for row_id, silent in seconds.items() if silent >= self._parts.settings.health_timeout]
        wait([self._threads.submit(tell_silence, self._parts, row_id, seconds[row_id]) for row_id in over])

    def _ask(self, rows: Sequence[Sandbox]) -> list[Sandbox]:
        """Those whose servers are silent."""
        asked = {self._threads.submit(self._answers, row): row for row in rows}
        wait(asked, timeout=TURN_SECONDS)
        return [row for future, row in asked.items() if _is_silence(future)]

    def _count(
        self, known: Mapping[tuple[str, datetime], int], silent: Sequence[Sandbox]
    ) -> dict[tuple[str, datetime], int]:
        """A row that was written since is a server that was heard since, or another one."""
        keys = [(row.id, row.updated_at) for row in silent]
        return {key: known.get(key, 0) + 1 for key in keys}

    def _answers(self, sandbox: Sandbox) -> bool:
        try:
            server = self._parts.agent_server(sandbox)
            return server is not None and server.answers()
        except WrongServer:
            look(self._parts, sandbox.id)
        except Exception as error:  # a defect of ours, in one row: the others are to be asked all the same
            log.exception("not_asked", sandbox=sandbox.id, error=type(error).__name__)
        return True


def _is_silence(answer: Future[bool]) -> bool:
    """Whether the server was asked and gave no answer; one whose turn did not come is not to blame."""
    return not answer.cancel() and not (answer.done() and answer.result())
