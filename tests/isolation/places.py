"""Runs the tries of a batch at their place, by one program, and reads their outcomes."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from tests.isolation.attack import Attack, Outcome, Try

PROBES = Path(__file__).parent / "probes"
# A program that runs longer than all its probes may has a defect.
BATCH_SECONDS = 600
# The id of a user without rights.
OTHER_USER = 65_534


class Batches:
    """Outcomes of tries: the first that is asked for runs its batch.

    Args:
        tries: all of the table.
        facts: values for the `$names` of arguments.
        commands: by place, the command that runs Python there, before its arguments.
    """

    def __init__(self, tries: Sequence[Try], facts: Mapping[str, str], commands: Mapping[str, Sequence[str]]) -> None:
        self._tries, self._facts, self._commands = tries, facts, commands
        self._outcomes: dict[int, Outcome] = {}

    def outcome(self, one: Try) -> Outcome:
        """What came of a try.

        Raises:
            AssertionError: its probe has a defect.
        """
        if id(one) not in self._outcomes:
            batch = [each for each in self._tries if each.batch == one.batch]
            self._outcomes |= zip(map(id, batch), self._run(batch), strict=True)
        found = self._outcomes[id(one)]
        return self.outcome(one.then) if one.then and found.reached else found

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
