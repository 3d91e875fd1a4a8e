"""The kept durations of tests. The longest tests start first, so that no process ends long after the others.

python -m tests.stages.durations var/log/{unit,real,drills}.xml   # after a run: keep its durations
"""

import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

from tests.stages.outcome import GROUP, as_reported, read_results

KEPT = Path(__file__).with_name("durations.json")
LEAST_SECONDS = 1.0
PARAMETERS = re.compile(r"\[.*$")


def read_durations(path: Path = KEPT) -> dict[str, float]:
    """The durations, in seconds, of tests and of groups (`@` and the name) that take at least one second.

    All variants of a test have the same duration: their mean. Otherwise one that fills a store for the others would
    put their whole file among the long tests, which the processes share, and each of them would fill the store again.
    """
    return dict(json.loads(path.read_text())) if path.exists() else {}


def seconds_of(test: str, group: str, durations: dict[str, float]) -> float:
    """The known duration of a test or its group, or 0."""
    return durations.get(f"@{group}" if group else without_parameters(as_reported(test)), 0.0)


def without_parameters(test: str) -> str:
    """The name of a test without its parameters."""
    return PARAMETERS.sub("", test)


def measure(files: list[Path]) -> dict[str, float]:
    """The mean of the seconds of each test's variants, and those of each group's tests together, from JUnit files."""
    groups: dict[str, float] = defaultdict(float)
    variants: dict[str, list[float]] = defaultdict(list)
    for result in (result for file in files for result in read_results(file)):
        if group := GROUP.search(result.test):
            groups[group[0]] += result.seconds
        else:
            variants[without_parameters(result.test)].append(result.seconds)
    found = groups | {name: mean(seconds) for name, seconds in variants.items()}
    return {name: round(seconds, 1) for name, seconds in sorted(found.items()) if seconds >= LEAST_SECONDS}


if __name__ == "__main__":
    KEPT.write_text(json.dumps(measure([Path(name) for name in sys.argv[1:]]), indent=1) + "\n")
