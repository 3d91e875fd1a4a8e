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
    entries = tomllib.loads(_read(path)).get("rerun", [])
    return [entry["test"] for entry in entries]


def add_to_record(failures: Sequence[Result], path: Path = RECORD) -> None:
    """Record that these tests failed, and passed in the rerun."""
    added = "".join(_entry(failure, datetime.now(UTC), _commit()) for failure in failures)
    tomllib.loads(_read(path) + added)  # a record that can't be read would end all later runs
    with path.open("a", encoding="utf-8") as file:
        file.write(added)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _entry(failure: Result, at: datetime, commit: str) -> str:
    fields = {
        "test": without_parameters(failure.test),
        "variant": failure.test,
        "at": f"{at:%Y-%m-%d %H:%M} UTC",
        "commit": commit,
        "error": failure.error,
        "cause": "",
    }
    return "\n[[rerun]]\n" + "".join(f"{name} = {_quote(value)}\n" for name, value in fields.items())


def _quote(text: str) -> str:
    """A string of TOML, which JSON's are without surrogates and DEL."""
    return json.dumps("".join(each for each in text if each == "\n" or each.isprintable()), ensure_ascii=False)


def _commit() -> str:
    command = ["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
