"""Runs batches of attempts at their places, one program for each batch, and reads the outcomes."""

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import Any

from tests.isolation.attack import Attack, Attempt, Batch, Outcome

PROBES = Path(__file__).parent / "probes"
# Longer than all probes of a program may take.
BATCH_SECONDS = 600
# The uid of an unprivileged user.
OTHER_USER = 65_534
# Places that are not containers.
OUTSIDE = ("host", "other user", "lan")
# The batch that searches logs and the database for traces of all others.
LAST = ("host", "host")


class Batches:
    """The outcomes of attempts. Batches run in parallel, because they mostly wait for responses that must not arrive.

    The batches of one container run in sequence, because a probe of limits takes resources that another needs. The
    batch of a `then` begins after the batches whose outcomes it decides.

    Args:
        attempts: all attempts of the table.
        facts: the values of `$names` in arguments.
        commands: the command that runs Python at each place, without its arguments.
    """

    def __init__(
        self, attempts: Sequence[Attempt], facts: Mapping[str, str], commands: Mapping[str, Sequence[str]]
    ) -> None:
        self._facts, self._commands = facts, commands
        self._attempts: dict[Batch, list[Attempt]] = defaultdict(list)
        for one in dict.fromkeys(attempts):  # many attacks have the same control
            self._attempts[one.batch].append(one)
        self._outcomes: dict[Batch, Future[dict[Attempt, Outcome]]] = {batch: Future() for batch in self._attempts}

    def outcome(self, one: Attempt) -> Outcome:
        """Wait for the batch of an attempt; return the attempt's outcome.

        Raises:
            AssertionError: the probe has a defect.
        """
        found = self._outcomes[one.batch].result()[one]
        return self.outcome(one.then) if one.then and found.reached else found

    def lanes(self) -> list[list[Batch]]:
        """The sequences of batches: all of a container in one, and each of the machine in its own."""
        found: dict[str | Batch, list[Batch]] = defaultdict(list)
        for batch in self._attempts:
            found[batch if batch[0] in OUTSIDE else batch[0]].append(batch)
        return list(found.values())

    def run(self, batches: Sequence[Batch]) -> None:
        """Run these batches in sequence."""
        for batch in batches:
            outcomes = self._outcomes[batch]
            try:
                wait([self._outcomes[before] for before in self.before(batch)], BATCH_SECONDS)
                attempts = self._attempts[batch]
                outcomes.set_result(dict(zip(attempts, self._run(attempts), strict=True)))
            except Exception as error:  # noqa: BLE001 - any error is the outcome of each test of the batch
                outcomes.set_exception(error)

    def before(self, batch: Batch) -> set[Batch]:
        """The batches that must end before this one begins."""
        if batch == LAST:
            return set(self._attempts) - {LAST}
        all_attempts = [one for attempts in self._attempts.values() for one in attempts]
        return {one.batch for one in all_attempts if one.then and one.then.batch == batch}

    def _run(self, batch: Sequence[Attempt]) -> list[Outcome]:
        place, file = batch[0].batch
        jobs = [[one.function.partition(".")[2], fill(one.arguments, self._facts)] for one in batch]
        done = subprocess.run(
            [*self._commands[place], "-"],
            input=program(file, jobs),
            capture_output=True,
            text=True,
            check=False,
            timeout=BATCH_SECONDS,
            user=OTHER_USER if place == "other user" else None,
            cwd="/",
        )
        reports = {report["number"]: report for report in map(json.loads, done.stdout.splitlines())}
        assert len(reports) == len(jobs), f"{file} at {place}: {done.stderr[-2000:]}"
        return [_read(reports[number], job) for number, job in enumerate(jobs)]


@contextmanager
def running_batches(
    attempts: Sequence[Attempt], facts: Mapping[str, str], commands: Mapping[str, Sequence[str]]
) -> Iterator[Batches]:
    """Run all batches of these attempts, and wait for their ends after the block."""
    batches = Batches(attempts, facts, commands)
    lanes = batches.lanes()
    with ThreadPoolExecutor(max(len(lanes), 1)) as threads:
        for lane in lanes:
            threads.submit(batches.run, lane)
        yield batches


def program(file: str, jobs: Sequence[Any]) -> str:
    """The source of a program that runs jobs of a probe file."""
    base, probes = ((PROBES / f"{name}.py").read_text() for name in ("base", file))
    lines = [line for line in probes.splitlines() if not line.startswith("from tests.")]
    return "\n".join([base, *lines, f"run_jobs(json.loads({json.dumps(jobs)!r}))", ""])


def fill(value: Any, facts: Mapping[str, str]) -> Any:
    """Replace the `$names` in a value by facts."""
    if isinstance(value, str):
        return Template(value).substitute(facts) if "$" in value else value
    if isinstance(value, Mapping):
        return {name: fill(one, facts) for name, one in value.items()}
    return [fill(one, facts) for one in value] if isinstance(value, list) else value


def commands_of_machine(lan: str) -> dict[str, list[str]]:
    """The commands of the places outside containers; `lan` is a network namespace."""
    host = [sys.executable, "-I"]
    # The system's Python, because other users cannot read the developer's.
    return {"host": host, "other user": ["/usr/bin/python3", "-I"], "lan": [*inside_namespace(lan), *host]}


def inside_namespace(name: str) -> list[str]:
    """The prefix of a command that runs in a network namespace."""
    return ["nsenter", f"--net=/run/netns/{name}"]


def _read(report: Mapping[str, Any], job: Any) -> Outcome:
    assert not report.get("broken"), f"the probe {job} has a defect: {report['evidence']}"
    return Outcome(report["reached"], report["evidence"])


def all_attempts(attacks: Sequence[Attack]) -> list[Attempt]:
    """The probes and controls of these attacks, with the attempts that decide for them."""
    return [one for attack in attacks for first in (attack.probe, attack.control) for one in _with_next(first)]


def _with_next(one: Attempt) -> list[Attempt]:
    return [one, *(_with_next(one.then) if one.then else [])]
