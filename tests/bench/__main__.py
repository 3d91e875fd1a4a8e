"""`make bench`: measurements of the service, beside baselines of its parts without the service."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from tests.bench import peer
from tests.bench.bursts import cold_burst, warm_burst
from tests.bench.conversations import conversations
from tests.bench.engines import stopped_engine
from tests.bench.figures import HEAD, Figure, line
from tests.bench.lists import lists
from tests.bench.machine import describe, memory_bytes
from tests.bench.pauses import pauses
from tests.bench.queueing import queueing
from tests.bench.site import Site, running_site
from tests.bench.stalls import stalls
from tests.bench.starts import cold, warm
from tests.bench.sweeps import sweeps
from tests.bench.versions import list_versions
from tests.bench.wake import wakes
from tests.bench.webhooks import webhooks
from tests.services.engine import SANDBOX_IMAGE, TINY_IMAGE

REAL, TINY = (SANDBOX_IMAGE, "real image"), (TINY_IMAGE, "tiny image")
Measure = Callable[[Site, int], Iterable[Figure]]
SITE_MEASURES: dict[str, Measure] = {
    "warm": lambda site, runs: [warm(site, *REAL, runs=runs, samples=8)],
    "warm-tiny": lambda site, runs: [warm(site, *TINY, runs=runs, samples=20)],
    "pause": lambda site, runs: pauses(site, *REAL, runs=runs, samples=20),
    "cold": lambda site, runs: [cold(site, *REAL, runs=runs), cold(site, *TINY, runs=runs)],
    "conversation": lambda site, runs: [conversations(site, *REAL, runs=runs, samples=3)],
    "warm-burst": lambda site, runs: warm_burst(site, *TINY, runs=runs),
    "cold-burst": lambda site, runs: [cold_burst(site, *TINY, runs=runs)],
    "wake": lambda site, runs: wakes(site, *REAL, runs=runs, samples=20),
    "queue": lambda _site, runs: [queueing(runs, samples=100)],
    "webhooks": lambda site, runs: [webhooks(site, runs)],
    "stalls": stalls,
    "memory": lambda site, _runs: [memory(site)],
}
# The measures with a store of their own.
STORE_MEASURES: dict[str, Callable[[argparse.Namespace], Iterable[Figure]]] = {
    "engine": lambda options: [stopped_engine(options.database, options.runs)],
    "versions": lambda options: [list_versions(options.database, options.runs)],
    "sweep": lambda options: sweeps(options.database, options.size, options.runs),
    "lists": lambda options: lists(options.database, options.size, options.runs, print_line, only=options.list),
}
MEASURES = (*SITE_MEASURES, *STORE_MEASURES)


def main(options: argparse.Namespace) -> None:
    """Measure, print each figure as soon as it is known, and write all of them."""
    subject = options.peer or options.database
    print_line(f"{subject}; {json.dumps(describe())}\n\n{HEAD}")
    figures = list(_print_each(_measure_peer(options) if options.peer else _measure(options)))
    if options.output is not None:
        _keep(options.output, subject, figures)


def memory(site: Site) -> Figure:
    """The memory of API, worker and broker after the other measurements."""
    found = sum(map(memory_bytes, site.pids())) / 1024**2
    return Figure(
        "memory of API, worker and broker", [[found]], goal="≤ 400 MB", check=lambda _: found <= 400, unit="MB"
    )


def print_line(text: str) -> None:
    """Print and flush."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _print_each(figures: Iterable[Figure]) -> Iterator[Figure]:
    for figure in figures:
        print_line(line(figure))
        yield figure


def _measure_peer(options: argparse.Namespace) -> Iterator[Figure]:
    return peer.measure(options.peer, options.key, options.runs, options.seconds)


def _measure(options: argparse.Namespace) -> Iterator[Figure]:
    if on_site := [name for name in options.only if name in SITE_MEASURES]:
        with running_site(options.database) as site:
            for name in on_site:
                yield from SITE_MEASURES[name](site, options.runs)
    for name in options.only:
        if name in STORE_MEASURES:
            yield from STORE_MEASURES[name](options)


def _keep(output: Path, subject: str, figures: list[Figure]) -> None:
    found = [figure.document() for figure in figures]
    document = {"at": datetime.now(UTC).isoformat(), "machine": describe(), "subject": subject, "figures": found}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(document, indent=1))
    print_line(f"\nwritten to {output}")


def _names(text: str) -> list[str]:
    """Parse the names of measures.

    Raises:
        ArgumentTypeError: a name is unknown.
    """
    names = text.split(",")
    if unknown := [name for name in names if name not in MEASURES]:
        raise argparse.ArgumentTypeError(f"there is no {', '.join(unknown)}; there are {', '.join(MEASURES)}")
    return names


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--database", choices=("postgresql", "sqlite"), default="postgresql")
    parser.add_argument("--runs", type=int, default=5, help="the number of runs, of which each figure is the median")
    parser.add_argument(
        "--only", type=_names, default=list(MEASURES), help=f"a list with commas, of {', '.join(MEASURES)}"
    )
    parser.add_argument("--size", type=int, default=100_000, help="rows in the stores of `lists` and `sweep`")
    parser.add_argument("--list", default="", help="only those of `lists` whose name contains this")
    parser.add_argument("--json", type=Path, dest="output", help="where to write every sample")
    parser.add_argument("--peer", metavar="URL", help="measure the V1 server that listens there instead")
    parser.add_argument(
        "--seconds", type=float, default=3, help="for --peer: how long to measure each rate, in seconds"
    )
    parser.add_argument(
        "--key", default=os.environ.get("PEER_KEY", ""), help="for --peer: the API key; default $PEER_KEY"
    )
    main(parser.parse_args())
