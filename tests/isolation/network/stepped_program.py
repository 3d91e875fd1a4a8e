"""A program in a network namespace that continues whenever the test tells it to."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.services.namespaces import Namespace


class SteppedProgram:
    """A running program that waits for an empty line before each of its steps, and prints a line after it."""

    def __init__(self, running: "subprocess.Popen[str]") -> None:
        self._running = running

    @property
    def is_running(self) -> bool:
        """Whether the program has not ended."""
        return self._running.poll() is None

    def read(self) -> str:
        """Read the next line of the program."""
        assert self._running.stdout is not None
        return self._running.stdout.readline().strip()

    def step(self) -> str:
        """Let the program take its next step; return the line that it prints."""
        assert self._running.stdin is not None
        self._running.stdin.write("\n")
        self._running.stdin.flush()
        return self.read()


@contextmanager
def running_program(place: Namespace, program: str, *arguments: str) -> Iterator[SteppedProgram]:
    """Run a Python program in a namespace, and kill it after the block."""
    command = [*place.command, "python3", "-IS", "-c", program, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as running:
        try:
            yield SteppedProgram(running)
        finally:
            running.kill()
