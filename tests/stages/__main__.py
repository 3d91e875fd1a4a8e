"""`python -m tests.stages unit|integration|ci|nightly [part]`: see the package."""

import argparse
import sys
from collections.abc import Mapping, Sequence

from tests.services.directories import MEMORY, REPOSITORY, has_room
from tests.stages import plan
from tests.stages.reruns import RECORD
from tests.stages.run import end_on_signals, locked, print_line
from tests.stages.session import run_session

LOGS = REPOSITORY / "var" / "log"
RUNS = {"unit": plan.UNIT, "integration": plan.INTEGRATION, "ci": plan.CI}


def main(arguments: Sequence[str]) -> int:
    """Run the requested stages; return the exit status."""
    options = _parse(arguments)
    end_on_signals()
    if not has_room(MEMORY):
        print_line(
            "warning: too little room in /dev/shm: PostgreSQL's files are on a disk, and its tests take much longer"
        )
    # Only `ci`, the run that checks a change, reruns failed tests, once, and records them.
    record = RECORD if options.run == "ci" else None
    runs = _runs(options)
    with locked(LOGS):
        bad = [name for name, groups in runs.items() if run_session(groups, LOGS, record=record) != 0]
    if len(runs) > 1:
        print_line(f"\n{len(runs)} parts; NOT OK: {', '.join(bad) or 'none'}")
    return 1 if bad else 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.stages", description=__doc__)
    parser.add_argument("run", choices=[*RUNS, "nightly"])
    parser.add_argument("part", nargs="?", help="for nightly: one part instead of all")
    return parser.parse_args(arguments)


def _runs(options: argparse.Namespace) -> Mapping[str, plan.Groups]:
    """The runs by name: each nightly part is one, so that a part that fails does not end the others."""
    if options.run != "nightly":
        return {options.run: RUNS[options.run]}
    parts = plan.nightly()
    if options.part not in (None, *parts):
        raise SystemExit(f"there is no part {options.part}; there are: {' '.join(parts)}")
    return {options.part: parts[options.part]} if options.part else parts


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
