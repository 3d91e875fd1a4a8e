"""A worker whose jobs record their start and wait for the file `go` (`waiting_worker_program`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.services.forked_program import ForkedProgram, Run
from tests.waiting import eventually

PROGRAM = "tests.fakes.waiting_worker_program"
QUEUE, TASK = "node.waiting", "tests.wait"
STOP_SECONDS = 20


class WaitingWorker:
    """A running worker, with room for two jobs at a time."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def runs(self) -> bool:
        """Whether the process has not ended."""
        return self._run.runs

    def stop(self) -> None:
        """Stop the worker, and wait until its running jobs have ended."""
        self.terminate()
        eventually(lambda: not self.runs, deadline_seconds=STOP_SECONDS)

    def terminate(self) -> None:
        """Tell the worker to stop."""
        self._run.terminate()


@contextmanager
def waiting_worker(program: ForkedProgram, broker_url: str, directory: Path) -> Iterator[WaitingWorker]:
    """Run a worker for the length of the block. Its files are in the directory; its output is the file `log` there."""
    run = program.run(broker_url, str(directory))
    try:
        yield WaitingWorker(run)
        (directory / "go").touch()
        WaitingWorker(run).stop()
    finally:
        run.kill()
