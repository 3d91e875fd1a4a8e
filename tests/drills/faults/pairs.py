"""Two deaths within one operation, at each pair of points; the second occurs during the recovery.

    python -m tests.drills.faults --operations start pause resume delete --pairs all --report docs/reports/pairs

The second points are those that the recovery from the first was seen to pass. Of the pairs that leave the same state
(`pair_states`), one is run, chosen by `--seed`. `--pairs N` takes N of these of each operation. `--thorough` takes
every pair, and every point before and after a write.
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

from tests.drills.faults.crash_states import Hit, Point
from tests.drills.faults.drill import die_twice, record_recovery
from tests.drills.faults.lanes import Lanes
from tests.drills.faults.operations import OPERATIONS
from tests.drills.faults.pair_states import Recovery, all_pairs, distinct_pairs
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

# The same number of lanes as in the drills. A lane mostly waits.
WIDTH = 6
USER_OPERATIONS = ("start", "pause", "resume", "delete")

EXPLANATION = (
    "A process is killed at a point of the operation and restarted. A process is also killed at a second point: the",
    "same one during its recovery, or the other one when it reaches its point. It is restarted, and the clients'",
    "history, the store and the engine are compared. If the recovery from the first death reaches no point, there is",
    "no pair, and only that recovery is checked.",
)


@dataclass(frozen=True)
class Pair:
    """Two deaths; the second follows the first."""

    operation: str
    first: Point
    second: Point

    def __str__(self) -> str:
        """The pair as reports and logs name it."""
        return f"{self.operation}: {' '.join(self.first)}, then {' '.join(self.second)}"


@dataclass(frozen=True)
class Outcome:
    """The result of a pair. Without a problem, the promise was kept after the deaths."""

    pair: Pair
    died: bool
    problem: str | None = None
    # The time from the second death to agreement.
    seconds: float = 0


def find_pairs(
    lanes: Lanes, recordings: Recordings, operation: str, chance: random.Random | None
) -> tuple[list[Pair], list[str]]:
    """Find the pairs of an operation; return them and the problems of the recordings.

    Args:
        chance: chooses one pair for each state; None: all pairs.
    """
    recoveries, problems = record_recoveries(lanes, recordings, operation)
    choose = recordings.choose
    found = all_pairs(recoveries, choose) if chance is None else distinct_pairs(recoveries, choose, chance)
    return [Pair(operation, recovery.first, second) for recovery, second in found], problems


def record_recoveries(lanes: Lanes, recordings: Recordings, operation: str) -> tuple[list[Recovery], list[str]]:
    """Record the recovery from a death at each point of an operation; return the recoveries and the problems."""
    [hits], points = recordings.hits([operation]), recordings.points(operation)

    def record_one(runner: Runner, first: Point) -> list[Hit]:
        return record_recovery(runner, OPERATIONS[operation], first)

    outcomes = dict(lanes.attempt(record_one, points))
    recoveries, problems = [], []
    for number, first in enumerate(points):
        outcome = outcomes[number]
        if isinstance(outcome, Exception):
            problems.append(f"{operation}: {' '.join(first)}: {outcome}")
        else:
            recoveries.append(Recovery(hits, first, outcome))
    return recoveries, problems


def try_pairs(lanes: Lanes, pairs: Sequence[Pair]) -> Iterator[Outcome]:
    """Run each pair; yield its outcome."""

    def work(runner: Runner, pair: Pair) -> Outcome:
        died = die_twice(runner, OPERATIONS[pair.operation], pair.first, pair.second)
        return Outcome(pair, died, seconds=runner.recoveries[-1] if died else 0)

    for number, outcome in lanes.attempt(work, pairs):
        yield Outcome(pairs[number], died=True, problem=str(outcome)) if isinstance(outcome, Exception) else outcome


@contextmanager
def opened_lanes(kind: str, width: int) -> Iterator[Lanes]:
    """Lanes with their own engine, broker and database."""
    with (
        short_directory("pairs", in_memory=True) as directory,
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
    """The report of a run."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._began = time.monotonic()
        self._pairs: Counter[str] = Counter()
        self._outcomes: list[Outcome] = []
        self.problems: list[str] = []

    def plan(self, operation: str, pairs: Sequence[Pair], problems: Sequence[str]) -> None:
        """Add the pairs of an operation that will run."""
        self._pairs[operation] = len(pairs)
        self.problems += problems

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of a pair."""
        self._outcomes.append(outcome)
        if outcome.problem:
            self.problems.append(f"{outcome.pair}: {outcome.problem}")

    def missed(self) -> list[Pair]:
        """Pairs whose second point was reached in the recording but not in the run."""
        return [outcome.pair for outcome in self._outcomes if not outcome.died]

    def is_kept(self) -> bool:
        """Whether pairs ran, both deaths of each occurred, and the promise was kept."""
        return bool(self._outcomes) and not (self.problems or self.missed())

    def progress(self) -> str:
        """One line of progress."""
        done, seconds = len(self._outcomes), time.monotonic() - self._began
        return f"[{seconds:6.0f} s] {done} of {self._pairs.total()} pairs; {len(self.problems)} violations"

    def markdown(self) -> str:
        """The report as Markdown."""
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
                *([""] if self.problems or self.missed() else []),
                *(f"- {problem.splitlines()[0]}" for problem in self.problems),
                *(f"- not reached: {pair}" for pair in self.missed()),
                "",
            ]
        )

    def write(self, path: Path) -> None:
        """Write the report as Markdown and as JSON."""
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
    """Run the requested pairs; the exit code says whether all died twice and the promise was kept."""
    given = _arguments()
    report = Report(given)
    # Discard the logs that lanes print when they close: they are meant for the output that pytest captures.
    with redirect_stdout(StringIO()), opened_lanes(given.database, given.width) as lanes:
        chosen: list[Pair] = []
        recordings = Recordings(lanes, thorough=given.thorough)
        chance = None if given.thorough else random.Random(given.seed)
        for operation in given.operations:
            pairs, problems = find_pairs(lanes, recordings, operation, chance)
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
    raise SystemExit(0 if report.is_kept() else 1)


def choose(pairs: Sequence[Pair], count: int | None, seed: int) -> list[Pair]:
    """Choose `count` pairs, the same ones for the same seed; None: all."""
    return list(pairs) if count is None else random.Random(seed).sample(pairs, min(count, len(pairs)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.drills.faults", description=__doc__)
    parser.add_argument(
        "--operations", nargs="+", choices=list(OPERATIONS), default=["start", "pause", "resume", "delete"]
    )
    parser.add_argument("--pairs", default="20", help="the number of pairs of each operation, or all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument(
        "--thorough",
        action="store_true",
        help="all points and pairs, not only those that leave different states",
    )
    parser.add_argument("--width", type=int, default=WIDTH, help="installations at once")
    parser.add_argument(
        "--report", type=Path, help="path of the report without its suffix: writes REPORT.md and REPORT.json"
    )
    return parser.parse_args()


def _revision() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
