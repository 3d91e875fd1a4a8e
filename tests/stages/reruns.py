"""Reruns of failed tests, and their record in the repository.

A test is recorded without its parameters: a race in a test is the same race in each of its variants.
"""

import json
import subprocess
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.services.directories import REPOSITORY
from tests.stages.durations import without_parameters
from tests.stages.outcome import Outcome, Result

RECORD = REPOSITORY / "tests" / "reruns.toml"
MAX_RERUNS = 2


@dataclass(frozen=True)
class Decision:
    """The tests to rerun, or the reason for which failed tests are not rerun."""

    tests: tuple[Result, ...] = ()
    refusal: str = ""


def decide(outcomes: Sequence[Outcome], recorded: Sequence[str]) -> Decision:
    """Decide whether to rerun the failures of a run: all of them or none."""
    failures = [result for outcome in outcomes for result in outcome.failures]
    if refusal := _refuse(outcomes, failures, recorded):
        return Decision(refusal=refusal)
    return Decision(tuple(failures))


def _refuse(outcomes: Sequence[Outcome], failures: Sequence[Result], recorded: Sequence[str]) -> str:
    if incomplete := [outcome.stage for outcome in outcomes if not outcome.is_complete]:
        return f"not complete: {', '.join(incomplete)}"
    if len(failures) > MAX_RERUNS:
        return f"{len(failures)} tests failed, more than {MAX_RERUNS}"
    for failure in failures:
        if not failure.may_rerun:
            return f"{failure.test} is never run again: its first failure counts"
        if without_parameters(failure.test) in recorded:
            return f"{failure.test} has been run again before: see {RECORD.relative_to(REPOSITORY)}"
    return ""


def read_record(path: Path = RECORD) -> list[str]:
    """The recorded tests, without their parameters."""
    entries = tomllib.loads(path.read_text()).get("rerun", []) if path.exists() else []
    return [entry["test"] for entry in entries]


def add_to_record(failures: Sequence[Result], path: Path = RECORD) -> None:
    """Record that these tests failed, and passed in the rerun."""
    with path.open("a") as file:
        for failure in failures:
            file.write(_entry(failure, datetime.now(UTC), _commit()))


def _entry(failure: Result, at: datetime, commit: str) -> str:
    fields = {
        "test": without_parameters(failure.test),
        "variant": failure.test,
        "at": f"{at:%Y-%m-%d %H:%M} UTC",
        "commit": commit,
        "error": "".join(character for character in failure.error if character == "\n" or character.isprintable()),
        "cause": "",
    }
    return "\n[[rerun]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())


def _commit() -> str:
    command = ["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
