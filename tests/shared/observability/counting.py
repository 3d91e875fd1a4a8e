"""A process that counts: it executes the commands of its input, one per line, and prints a line for each."""

import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from prometheus_client import generate_latest
from sqlmodel import Session

from shared.observability import metric_files, metrics
from shared.observability.metrics import StartSource
from shared.settings import Settings


def main(arguments: Sequence[str]) -> None:
    """Execute commands with counter files in this var directory."""
    settings = Settings(var_dir=Path(arguments[0]))
    metric_files.CHECK_SECONDS = 0.0  # each count checks whether the files exist
    metrics.configure_instruments(settings)
    _say("counting")
    for line in sys.stdin:
        _execute(line.split(), settings)
        _say("done")


def _execute(command: Sequence[str], settings: Settings) -> None:
    match command:
        case ["start", source, *spec]:
            with Session() as session:
                metrics.record_start(session, "".join(spec) or "spec:1", StartSource(source))
                metrics.count_starts(session)
        case ["refill", seconds, *spec]:
            metrics.observe_refill("".join(spec) or "spec:1", timedelta(seconds=float(seconds)))
        case ["serve", port]:
            metrics.serve(settings, "127.0.0.1", int(port))
        case ["show"]:
            _say(generate_latest(metrics.collector(settings)).decode())


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - to the test that reads its output
