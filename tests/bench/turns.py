"""`python -m tests.bench.turns before=DIRECTORY@IMAGE after=DIRECTORY@IMAGE`: two checkouts, measured in alternation.

Both services run at the same time, and each measurement of one is followed by the same of the other within a second. So
a change of the machine's speed affects both, and not their ratio. Each directory has an environment in `.venv`. The
image is that checkout's sandbox image.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.bench import turn_site
from tests.bench.turn_site import MARK

# The number of starts in each round. Pauses, resumes and requests are measured in the first round only.
STARTS, PAUSES, REQUESTS = 8, 20, 30
# The time for which servers are busy after their boot.
SETTLE_SECONDS = 5.0


class Checkout:
    """A directory with the code of one revision, and its running service."""

    def __init__(self, name: str, directory: str, image: str) -> None:
        self.name = name
        command = [".venv/bin/python", "-P", turn_site.__file__, image]
        environment = {**os.environ, "PYTHONPATH": str(Path(directory).resolve())}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=directory, env=environment, stdin=pipe, stdout=pipe, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()

    def begin(self, word: str) -> None:
        """Name the next measurement."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def read(self) -> float:
        """Read the next result, in seconds.

        Raises:
            RuntimeError: the checkout's process has ended.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                return float(json.loads(line.removeprefix(MARK)))
        raise RuntimeError(f"{self.name}: its process has ended")


class Turns:
    """The results of both checkouts."""

    def __init__(self, checkouts: Sequence[Checkout]) -> None:
        self._checkouts = checkouts
        self._seconds: dict[tuple[str, str], list[float]] = defaultdict(list)

    def run(self, rounds: int) -> None:
        """Run rounds of measurements."""
        for number in range(rounds):
            self._all(f"starts {STARTS}")
            self._all_read()
            time.sleep(SETTLE_SECONDS)
            for turn in range(STARTS):
                self._measure("start", "go", turn)
            self._all("end")
            self._all_read()
            if number == 0:
                self._measure_others()

    def report(self) -> str:
        """The report: medians with quartiles and counts, in ms, and the ratio of the second checkout to the first."""
        return "\n".join(self._row(verb) for verb in dict.fromkeys(verb for verb, _ in self._seconds))

    def _row(self, verb: str) -> str:
        both = [self._seconds[verb, one.name] for one in self._checkouts]
        ratio = statistics.median(both[1]) / statistics.median(both[0])
        return f"{verb}: {_summary(both[0])}, {_summary(both[1])}, ratio {ratio:.3f}"

    def _measure_others(self) -> None:
        for turn in range(PAUSES):
            for verb in ("pause", "resume"):
                self._measure(verb, verb, turn)
        for turn in range(REQUESTS):
            self._measure("request", "request", turn)

    def _measure(self, verb: str, word: str, turn: int) -> None:
        for checkout in self._checkouts if turn % 2 else reversed(self._checkouts):
            checkout.begin(word)
            self._seconds[verb, checkout.name].append(checkout.read())

    def _all(self, word: str) -> None:
        for checkout in self._checkouts:
            checkout.begin(word)

    def _all_read(self) -> None:
        with ThreadPoolExecutor() as threads:
            list(threads.map(Checkout.read, self._checkouts))


def main() -> None:
    """Measure, and print the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.turns", description=__doc__)
    parser.add_argument("checkouts", nargs=2, metavar="NAME=DIRECTORY@IMAGE")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with ExitStack() as stack:
        checkouts = []
        for text in options.checkouts:
            name, _, place = text.partition("=")
            directory, _, image = place.rpartition("@")
            checkouts.append(stack.enter_context(Checkout(name, directory, image)))
        for checkout in checkouts:
            checkout.read()
        turns = Turns(checkouts)
        turns.run(options.rounds)
    sys.stdout.write(f"{turns.report()}\n")


def _summary(seconds: Sequence[float]) -> str:
    low, middle, high = (1000 * value for value in statistics.quantiles(seconds, n=4))
    return f"{middle:.1f} ({low:.1f}-{high:.1f}, {len(seconds)})"


if __name__ == "__main__":
    main()
