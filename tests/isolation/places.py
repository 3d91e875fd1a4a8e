"""Runs the tries of a batch at their place, by one program, and reads their outcomes."""

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

from tests.isolation.attack import Attack, Batch, Outcome, Try

PROBES = Path(__file__).parent / "probes"
# A program that runs longer than all its probes may has a defect.
BATCH_SECONDS = 600
# The id of a user without rights.
OTHER_USER = 65_534
# Places that are no containers.
OUTSIDE = ("host", "other user", "lan")
# Reads what all others have left: in logs, in the database.
LAST = ("host", "host")


class Batches:
    """Outcomes of tries, whose batches run side by side: most of their time they wait for an answer that must not come.

    Those of one container run one after the other: a probe of limits takes what another one needs. A batch with a
    `then` begins after those that come before it.

    Args:
        tries: all of the table.
        facts: values for the `$names` of arguments.
        commands: by place, the command that runs Python there, before its arguments.
    """

    def __init__(self, tries: Sequence[Try], facts: Mapping[str, str], commands: Mapping[str, Sequence[str]]) -> None:
        self._facts, self._commands = facts, commands
        self._tries: dict[Batch, list[Try]] = defaultdict(list)
        for one in dict.fromkeys(tries):  # many attacks have the same control
            self._tries[one.batch].append(one)
        self._outcomes: dict[Batch, Future[dict[Try, Outcome]]] = {batch: Future() for batch in self._tries}

    def outcome(self, one: Try) -> Outcome:
        """What came of a try, once its batch has ended.

        Raises:
            AssertionError: its probe has a defect.
        """
        found = self._outcomes[one.batch].result()[one]
        return self.outcome(one.then) if one.then and found.reached else found

    def lanes(self) -> list[list[Batch]]:
        """Batches that run one after the other, each: those of a container; on the machine each by itself."""
        found: dict[str | Batch, list[Batch]] = defaultdict(list)
        for batch in self._tries:
            found[batch if batch[0] in OUTSIDE else batch[0]].append(batch)
        return list(found.values())

    def run(self, batches: Sequence[Batch]) -> None:
        """Run these batches, one after the other."""
        for batch in batches:
            outcomes = self._outcomes[batch]
            try:
                wait([self._outcomes[before] for before in self.before(batch)], BATCH_SECONDS)
                tries = self._tries[batch]
                outcomes.set_result(dict(zip(tries, self._run(tries), strict=True)))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the outcome of each test of the batch
                outcomes.set_exception(error)

    def before(self, batch: Batch) -> set[Batch]:
        """The batches that must have ended when this one begins."""
        if batch == LAST:
            return set(self._tries) - {LAST}
        all_tries = [one for tries in self._tries.values() for one in tries]
        return {one.batch for one in all_tries if one.then and one.then.batch == batch}

    def _run(self, batch: Sequence[Try]) -> list[Outcome]:
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
    tries: Sequence[Try], facts: Mapping[str, str], commands: Mapping[str, Sequence[str]]
) -> Iterator[Batches]:
    """All batches of these tries, which have ended at the end of the block."""
    batches = Batches(tries, facts, commands)
    lanes = batches.lanes()
    with ThreadPoolExecutor(max(len(lanes), 1)) as threads:
        for lane in lanes:
            threads.submit(batches.run, lane)
        yield batches


def program(file: str, jobs: Sequence[Any]) -> str:
    """The text of a probe file, with that which runs it."""
    base, probes = ((PROBES / f"{name}.py").read_text() for name in ("base", file))
    lines = [line for line in probes.splitlines() if not line.startswith("from tests.")]
    return "\n".join([base, *lines, f"run_jobs(json.loads({json.dumps(jobs)!r}))", ""])


def fill(value: Any, facts: Mapping[str, str]) -> Any:
    """The value with facts in the place of `$names`."""
    if isinstance(value, str):
        return Template(value).substitute(facts) if "$" in value else value
    if isinstance(value, Mapping):
        return {name: fill(one, facts) for name, one in value.items()}
    return [fill(one, facts) for one in value] if isinstance(value, list) else value


def commands_of_machine(lan: str) -> dict[str, list[str]]:
    """The commands of places outside containers; `lan` is a network namespace."""
    host = [sys.executable, "-I"]
    # Python of the system: other users can't read the developers' own.
    return {"host": host, "other user": ["/usr/bin/python3", "-I"], "lan": [*inside_namespace(lan), *host]}


def inside_namespace(name: str) -> list[str]:
    """The beginning of a command that runs in a network namespace."""
    return ["nsenter", f"--net=/run/netns/{name}"]


def _read(report: Mapping[str, Any], job: Any) -> Outcome:
    assert not report.get("broken"), f"the probe {job} has a defect: {report['evidence']}"
    return Outcome(report["reached"], report["evidence"])


def all_tries(attacks: Sequence[Attack]) -> list[Try]:
    """The probes and controls of these attacks, with those that decide for them."""
    return [one for attack in attacks for first in (attack.probe, attack.control) for one in _with_next(first)]


def _with_next(one: Try) -> list[Try]:
    return [one, *(_with_next(one.then) if one.then else [])]
