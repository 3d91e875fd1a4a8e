"""A second death while the first one's work is carried out: at each pair of points within an operation.

    python -m tests.drills.faults --operations start pause resume delete --pairs all --report docs/reports/pairs

The second points are those that the recovery from the first was seen to pass. `--pairs N` takes N pairs of each
operation, chosen by `--seed`; `--thorough` takes every point before and after a write.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path

from tests.drills.faults.crash_states import Meeting, Point
from tests.drills.faults.drill import die_twice, record_recovery
from tests.drills.faults.lanes import Lanes
from tests.drills.faults.operations import OPERATIONS
from tests.drills.faults.recordings import Recordings
from tests.drills.faults.runner import Runner
from tests.drills.faults.specs import SPECS
from tests.services.directories import short_directory
from tests.services.engine import TINY_IMAGE
from tests.services.postgres import running_postgres
from tests.services.private_engine import running_private_engine
from tests.services.registry import running_registry
from tests.services.stores import PostgresStores, SqliteStores, Stores
from tests.services.valkey import running_valkey

# As many as the drills have: what is killed waits most of the time.
WIDTH = 6
USER_OPERATIONS = ("start", "pause", "resume", "delete")

EXPLANATION = (
    "A process is killed at a point of the operation and restarted. A process is killed at a second point, too: the",
    "same one while it carries out what was broken off, or the other one whenever it meets its point. It is restarted,",
    "and the clients' history, the store and the engine are compared.",
)


@dataclass(frozen=True)
class Pair:
    """A death, and another one in what follows it."""

    operation: str
    first: Point
    second: Point

    def __str__(self) -> str:
        """As it is told to people."""
        return f"{self.operation}: {' '.join(self.first)}, then {' '.join(self.second)}"


@dataclass(frozen=True)
class Outcome:
    """What became of a pair. Both deaths, and all was as promised again: no problem."""

    pair: Pair
    died: bool
    problem: str | None = None
    # From the second death to agreement.
    seconds: float = 0


def find_pairs(lanes: Lanes, recordings: Recordings, operation: str) -> tuple[list[Pair], list[str]]:
    """All pairs of an operation, and what went wrong while they were looked for."""
    points = recordings.points(operation)

    def look(runner: Runner, first: Point) -> list[Meeting]:
        return record_recovery(runner, OPERATIONS[operation], first)

    found: list[list[Point]] = [[] for _ in points]
    problems: list[str] = []
    for number, outcome in lanes.attempt(look, points):
        if isinstance(outcome, Exception):
            problems.append(f"{operation}: {' '.join(points[number])}: {outcome}")
        else:
            found[number] = recordings.choose(outcome)
    pairs = [Pair(operation, first, second) for first, seconds in zip(points, found, strict=True) for second in seconds]
    return pairs, problems


def try_pairs(lanes: Lanes, pairs: Sequence[Pair]) -> Iterator[Outcome]:
    """What becomes of each pair."""

    def work(runner: Runner, pair: Pair) -> Outcome:
        died = die_twice(runner, OPERATIONS[pair.operation], pair.first, pair.second)
        return Outcome(pair, died, seconds=runner.recoveries[-1] if died else 0)

    for number, outcome in lanes.attempt(work, pairs):
        yield Outcome(pairs[number], died=True, problem=str(outcome)) if isinstance(outcome, Exception) else outcome


@contextmanager
def opened_lanes(kind: str, width: int) -> Iterator[Lanes]:
    """Lanes on an engine, a broker and a database of their own."""
    with (
        short_directory("pairs") as directory,
        running_valkey() as valkey,
        running_private_engine([TINY_IMAGE]) as engine,
        running_registry(TINY_IMAGE) as registry,
        _stores(kind, directory) as stores,
    ):
        for image in SPECS:
            engine.docker("tag", TINY_IMAGE, image)
        lanes = Lanes(engine, registry, stores, valkey, directory, width)
        yield lanes
        lanes.close()


@contextmanager
def _stores(kind: str, directory: Path) -> Iterator[Stores]:
    if kind == "sqlite":
        yield SqliteStores(directory / "template.db")
    else:
        with running_postgres() as server:
            yield PostgresStores(server)


class Report:
    """What was done and found."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._began = time.monotonic()
        self._pairs: Counter[str] = Counter()
        self._outcomes: list[Outcome] = []
        self.problems: list[str] = []

    def plan(self, operation: str, pairs: Sequence[Pair], problems: Sequence[str]) -> None:
        """So many pairs are to be tried."""
        self._pairs[operation] = len(pairs)
        self.problems += problems

    def add(self, outcome: Outcome) -> None:
        """One was tried."""
        self._outcomes.append(outcome)
        if outcome.problem:
            self.problems.append(f"{outcome.pair}: {outcome.problem}")

    def missed(self) -> list[Pair]:
        """Pairs whose second point was passed when it was recorded, and not when the process was to die there."""
        return [outcome.pair for outcome in self._outcomes if not outcome.died]

    def progress(self) -> str:
        """Where it stands."""
        done, seconds = len(self._outcomes), time.monotonic() - self._began
        return f"[{seconds:6.0f} s] {done} of {self._pairs.total()} pairs; {len(self.problems)} violations"

    def markdown(self) -> str:
        """For people."""
        slowest = max((outcome.seconds for outcome in self._outcomes), default=0)
        rows = [f"| {name} | {planned} | {self._died(name)} |" for name, planned in self._pairs.items()]
        return "\n".join(
            [
                "# Two deaths within an operation",
                "",
                f"`{self._command()}`, revision {_revision()}, {time.strftime('%Y-%m-%d', time.gmtime())},",
                f"{(time.monotonic() - self._began) / 60:.0f} minutes.",
                "",
                *EXPLANATION,
                "",
                "| Operation | Pairs | Both deaths, and the promise kept |",
                "|---|---|---|",
                *rows,
                "",
                f"Violations: {len(self.problems)}. From the second death to agreement: {slowest:.1f} s at most.",
                f"Second points that were passed only when recorded, and in none of the tries: {len(self.missed())}.",
                *([""] if self.problems else []),
                *(f"- {problem.splitlines()[0]}" for problem in self.problems),
                "",
            ]
        )

    def write(self, path: Path) -> None:
        """Both forms, beside each other."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".md").write_text(self.markdown())
        found = {"command": self._command(), "violations": self.problems, "outcomes": list(map(asdict, self._outcomes))}
        path.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")

    def _died(self, operation: str) -> int:
        return sum(o.died and not o.problem for o in self._outcomes if o.pair.operation == operation)

    def _command(self) -> str:
        given = self._arguments
        words = f"PAIRS={given.pairs} SEED={given.seed} DATABASE={given.database}"
        words += " THOROUGH=1" if given.thorough else ""
        return f'make faults {words} OPERATIONS="{" ".join(given.operations)}"'


def main() -> None:
    """Try the pairs that are asked for; the exit code says whether the promise was kept."""
    given = _arguments()
    report = Report(given)
    # What lanes print of their logs when they end is for pytest.
    with redirect_stdout(StringIO()), opened_lanes(given.database, given.width) as lanes:
        chosen: list[Pair] = []
        recordings = Recordings(lanes, thorough=given.thorough)
        for operation in given.operations:
            pairs, problems = find_pairs(lanes, recordings, operation)
            _say(f"{operation}: {len(pairs)} pairs")
            pairs = choose(pairs, None if given.pairs == "all" else int(given.pairs), given.seed)
            report.plan(operation, pairs, problems)
            chosen += pairs
        for number, outcome in enumerate(try_pairs(lanes, chosen), 1):
            report.add(outcome)
            if outcome.problem:
                _say(f"VIOLATION {outcome.pair}: {outcome.problem}")
            if number % 10 == 0:
                _say(report.progress())
                if given.report:
                    report.write(given.report)
    if given.report:
        report.write(given.report)
    _say(report.markdown())
    raise SystemExit(1 if report.problems else 0)


def choose(pairs: Sequence[Pair], count: int | None, seed: int) -> list[Pair]:
    """So many of them, the same ones for the same seed; None: all."""
    return list(pairs) if count is None else random.Random(seed).sample(pairs, min(count, len(pairs)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.drills.faults", description=__doc__)
    parser.add_argument(
        "--operations", nargs="+", choices=list(OPERATIONS), default=["start", "pause", "resume", "delete"]
    )
    parser.add_argument("--pairs", default="20", help="how many of each operation, or all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument(
        "--thorough", action="store_true", help="all 2n points of n writes, not the n + 1 that leave different worlds"
    )
    parser.add_argument("--width", type=int, default=WIDTH, help="installations at once")
    parser.add_argument("--report", type=Path, help="where to write REPORT.md and REPORT.json")
    return parser.parse_args()


def _revision() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
