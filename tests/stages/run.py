"""Runs groups of stages, each stage as a process with its own files."""

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.services.directories import REPOSITORY
from tests.stages.outcome import Outcome, check_program, check_tests
from tests.stages.plan import Groups, Stage

POLL_SECONDS = 0.2
PROGRESS_SECONDS = 60.0
GRACE_SECONDS = 30.0
SHOWN_LINES = 400
# Variables with which an environment would leave tests out, ignore failures, or replace the image under test.
NOT_INHERITED = {"PYTEST_ADDOPTS", "PYTEST_PLUGINS", "MAKEFLAGS", "AW_TEST_SANDBOX_IMAGE"}
# Cache rewritten assertions beside the tests; otherwise each process would spend ten seconds on them.
NOT_INHERITED |= {"PYTHONDONTWRITEBYTECODE"}
RECORDING = ("-p", "tests.stages.recording", "-p", "tests.stages.compiling", "--durations=50")

# The signals received. A handler that raised an error could do so between the start of a process and its registration.
_SIGNALS: list[int] = []


@dataclass(frozen=True)
class Files:
    """The files of a stage."""

    log: Path
    record: Path
    junit: Path

    @classmethod
    def of(cls, stage: Stage, directory: Path) -> "Files":
        """The files of a stage in a directory."""
        return cls(*(directory / f"{stage.name}.{ending}" for ending in ("log", "json", "xml")))

    def remove(self) -> None:
        """Remove the files of an earlier run."""
        for file in (self.log, self.record, self.junit):
            file.unlink(missing_ok=True)


class Running:
    """A stage's process."""

    def __init__(self, stage: Stage, directory: Path, root: Path) -> None:
        self.stage, self._files = stage, Files.of(stage, directory)
        self._began = time.monotonic()
        self._log: IO[bytes] = self._files.log.open("wb")
        self._process = subprocess.Popen(
            self._command(),
            cwd=root,
            env=_environment(stage),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def seconds(self) -> float:
        """The seconds since the start."""
        return time.monotonic() - self._began

    def poll(self) -> Outcome | None:
        """Return the outcome if the process has ended; stop it when its time is over."""
        if self.seconds > self.stage.minutes * 60:
            stop([self])
        return None if self._process.poll() is None else self._check()

    def send(self, number: int) -> None:
        """Send a signal to the process and those that it started, unless it has ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def wait(self, seconds: float) -> None:
        """Wait until the process ends, at most for some seconds."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, seconds))

    def last_line(self) -> str:
        """The last line of its output."""
        lines = self._files.log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else ""

    def _command(self) -> Sequence[str]:
        if not self.stage.is_pytest:
            return self.stage.command
        files = ("--record", str(self._files.record), f"--junitxml={self._files.junit}", "-o", "junit_family=xunit1")
        return [*self.stage.command, *RECORDING, *files]

    def _check(self) -> Outcome:
        self._log.close()
        name, status, seconds = self.stage.name, self._process.returncode, self.seconds
        if not self.stage.is_pytest:
            return check_program(name, status, seconds)
        return check_tests(name, status, seconds, record=self._files.record, junit=self._files.junit)


def stop(running: Sequence[Running]) -> None:
    """Interrupt all of these processes, and kill those that do not end soon."""
    for number in (signal.SIGINT, signal.SIGKILL):
        for one in running:
            one.send(number)
        until = time.monotonic() + GRACE_SECONDS
        for one in running:
            one.wait(until - time.monotonic())


def end_on_signals() -> None:
    """Let signals end the run and its stages, also those signals that come while the stages end.

    A shell starts background commands with SIGINT ignored, and child processes inherit this: programs that tests
    interrupt would then end only when they are killed, 20 s later. `nohup` ignores SIGHUP on purpose.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda received, _: _SIGNALS.append(received))


def _environment(stage: Stage) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    return kept | dict(stage.environment)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep other runs from the files in a directory. Processes of this run do not inherit the lock.

    Raises:
        SystemExit: another run has the lock.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another run writes to {directory}: wait until it ends, or use another clone") from None
        yield


def run_groups(groups: Groups, directory: Path, *, root: Path = REPOSITORY) -> Iterator[Outcome]:
    """Run groups; yield the outcome of each stage as it ends. After a failed program, no further group begins."""
    directory.mkdir(parents=True, exist_ok=True)
    for stage in (stage for group in groups for stage in group):
        Files.of(stage, directory).remove()
    for group in groups:
        outcomes = list[Outcome]()
        for outcome in _run_group(group, directory, root):
            outcomes.append(outcome)
            yield outcome
        programs = {stage.name for stage in group if not stage.is_pytest}
        if any(outcome.stage in programs and not outcome.is_good for outcome in outcomes):
            return


def _run_group(group: Sequence[Stage], directory: Path, root: Path) -> Iterator[Outcome]:
    running = list[Running]()
    reported_at = time.monotonic()
    try:
        for stage in group:
            running.append(Running(stage, directory, root))
        while running:
            time.sleep(POLL_SECONDS)
            if _SIGNALS:
                raise SystemExit(128 + _SIGNALS[0])
            for one in list(running):
                if outcome := one.poll():
                    running.remove(one)
                    print_outcome(outcome, Files.of(one.stage, directory).log)
                    yield outcome
            if time.monotonic() - reported_at > PROGRESS_SECONDS:
                reported_at = time.monotonic()
                print_progress(running)
    finally:
        stop(running)


def print_progress(running: Sequence[Running]) -> None:
    """Print the progress of each running stage."""
    for one in running:
        print_line(f"  {one.stage.name}: {one.seconds:.0f} s … {one.last_line()[-100:]}")


def print_outcome(outcome: Outcome, log: Path) -> None:
    """Print the outcome of a stage, with the end of its log unless it ended well."""
    if not outcome.is_good:
        print_line("\n".join(log.read_text(errors="replace").splitlines()[-SHOWN_LINES:]))
    counted = ", ".join(f"{count} {verdict}" for verdict, count in outcome.count().items())
    print_line(
        f"{'ok' if outcome.is_good else 'NOT OK'}: {outcome.stage}, {outcome.seconds:.0f} s{counted and f', {counted}'}"
    )
    for problem in outcome.problems:
        print_line(f"  {problem}")


def print_line(text: str) -> None:
    """Print and flush."""
    print(text, flush=True)  # noqa: T201 - the terminal is its page
