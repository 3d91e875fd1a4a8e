"""Small programs in their own processes, with which tests exchange lines."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.services.directories import REPOSITORY


class Program:
    """A running program; it and the test write lines to each other."""

    def __init__(self, source: str, *arguments: str, prefix: Sequence[str] = ()) -> None:
        """Start the program; `prefix` is the beginning of its command."""
        command = [*prefix, sys.executable, "-c", source, *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
        )

    def write(self, line: str = "") -> None:
        """Write a line to the program."""
        assert self._process.stdin
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def read(self) -> str:
        """Wait for the program's next line."""
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        """Kill the program (`kill -9`), and wait for its end."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Kill the program if it still runs."""
        with self._process:
            self._process.kill()


@contextmanager
def running(source: str, *arguments: str, prefix: Sequence[str] = ()) -> Iterator[Program]:
    """Run a program for the length of the block."""
    program = Program(source, *arguments, prefix=prefix)
    try:
        yield program
    finally:
        program.close()


@contextmanager
def running_together(count: int, source: str, *arguments: str) -> Iterator[list[Program]]:
    """Run several copies of a program for the length of the block."""
    programs = [Program(source, *arguments) for _ in range(count)]
    try:
        yield programs
    finally:
        for program in programs:
            program.close()
