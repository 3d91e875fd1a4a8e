"""Tables of a run's durations, in Markdown.

python -m tests.stages.report var/log/*.xml
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.stages.durations import without_parameters
from tests.stages.outcome import Result, read_results

SLOWEST = 30
# Folders with many kinds of tests: the table names their subfolders.
DEEP = {"tests.api", "tests.shared", "tests.drills", "tests.contract"}


def render(files: Sequence[Path]) -> str:
    """All tables of the results in JUnit files."""
    by_stage = {file.stem: read_results(file) for file in files}
    results = [result for found in by_stage.values() for result in found]
    stages = [_row(stage, found) for stage, found in by_stage.items()]
    folders = sorted(_by(results).items(), key=lambda item: -_seconds(item[1]))
    return "\n".join(
        [
            *_table("Stage", stages),
            "",
            *_table("Folder", [_row(f"`{name.replace('.', '/')}`", found) for name, found in folders]),
            "",
            f"The slowest {SLOWEST} tests:",
            "",
            "| Seconds | Test |",
            "|---:|---|",
            *(f"| {result.seconds:.1f} | `{result.test}` |" for result in _slowest(results)),
            "",
            f"The slowest {SLOWEST} test functions, all variants together:",
            "",
            "| Seconds | Variants | Test |",
            "|---:|---:|---|",
            *_functions(results),
        ]
    )


def _table(head: str, rows: Iterable[str]) -> list[str]:
    return [f"| {head} | Tests | Failed | Seconds of tests |", "|---|---:|---:|---:|", *rows]


def _row(name: str, results: Sequence[Result]) -> str:
    failed = sum(result.is_bad for result in results)
    return f"| {name} | {len(results)} | {failed} | {_seconds(results):.0f} |"


def _seconds(results: Iterable[Result]) -> float:
    return sum(result.seconds for result in results)


def _slowest(results: Iterable[Result]) -> list[Result]:
    return sorted(results, key=lambda result: -result.seconds)[:SLOWEST]


def _by(results: Iterable[Result]) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        parts = result.test.split("::")[0].split(".")
        depth = 3 if ".".join(parts[:2]) in DEEP and len(parts) > 3 else 2
        found[".".join(parts[:depth])].append(result)
    return found


def _functions(results: Iterable[Result]) -> list[str]:
    seconds: Counter[str] = Counter()
    variants: Counter[str] = Counter()
    for result in results:
        name = without_parameters(result.test)
        seconds[name] += result.seconds  # type: ignore[assignment]
        variants[name] += 1
    return [f"| {total:.1f} | {variants[name]} | `{name}` |" for name, total in seconds.most_common(SLOWEST)]


if __name__ == "__main__":
    sys.stdout.write(render([Path(name) for name in sys.argv[1:]]) + "\n")
