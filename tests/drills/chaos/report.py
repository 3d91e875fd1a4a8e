"""The result of a chaos run as a Markdown page."""

import os
import platform
import statistics
import subprocess
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.drills.chaos.run import Result

WIDTH = 40


def write_report(path: Path, result: Result) -> None:
    """Write the result as Markdown."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(_lines(result)) + "\n")


def _lines(result: Result) -> list[str]:
    verdict = "kept" if result.is_kept else "NOT kept"
    return [
        f"# A chaos run on {result.database}: the promise was {verdict}",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, commit {_commit()}, {os.cpu_count()} cores, Linux {platform.release()}.",
        "Two engines, three workers, two API processes, one broker, one database, one registry; "
        + ("leases of 3 s and intervals to match." if result.short_timeouts else "the service's default settings."),
        "",
        "```sh",
        f"make chaos SECONDS={result.seconds:.0f} SEED={result.seed} DATABASE={result.database}"
        + ("" if result.short_timeouts else " DEFAULT_SETTINGS=1"),
        "```",
        "",
        "| | |",
        "|---|---|",
        f"| acknowledged writes | {result.acknowledged} |",
        f"| faults | {result.faults.total()} |",
        f"| seconds of faults under load | {result.seconds:.0f} |",
        f"| lost, duplicated, orphaned, stuck, misreported | {len(result.violations)} |",
        *_times("from the last fault to agreement", result.agreement),
        *_times("from the last request, without faults, to agreement", result.fulfilment),
        "",
        *[f"- {violation}" for violation in result.violations],
        "## Each round, from its last fault to agreement",
        "",
        "```",
        *_bars(result.agreement),
        "```",
        "",
        "## Requests",
        "",
        *_table("request and response", result.counts),
        "",
        "A `lost` request got no response: it may have taken effect or not.",
        "A `fail` is a 4xx: the sandbox had been deleted concurrently, or could not take a conversation.",
        "",
        "The last stages of conversations' starts. Each ERROR has a reason: for example, the sandbox was paused:",
        "",
        *_table("stage", result.starts),
        "",
        "## Faults",
        "",
        *_table("fault", result.faults),
        *(["", *_table("fault without effect (not counted)", result.missed)] if result.missed else []),
        *(["", *_table("process that ended by itself", result.ends)] if result.ends else []),
    ]


def _times(what: str, seconds: Sequence[float]) -> list[str]:
    if not seconds:
        return []
    return [f"| {what}: median, slowest of {len(seconds)} | {statistics.median(seconds):.1f} s, {max(seconds):.1f} s |"]


def _bars(seconds: Sequence[float]) -> list[str]:
    longest = max([*seconds, 1.0])
    return [
        f"{number:3} {'#' * round(WIDTH * one / longest):{WIDTH}} {one:5.1f} s" for number, one in enumerate(seconds, 1)
    ]


def _table(name: str, counts: Counter[str]) -> list[str]:
    return [f"| {name} | times |", "|---|---|", *(f"| {key} | {counts[key]} |" for key in sorted(counts))]


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
