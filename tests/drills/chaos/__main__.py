"""`python -m tests.drills.chaos`: inject faults into a real installation under load, and check the promise."""

import argparse
import faulthandler
import random
import sys
import time
from pathlib import Path

from tests.drills.chaos.report import write_report
from tests.drills.chaos.run import run

LOGS = Path("var/log/chaos")
# A run that takes longer than its length times the factor plus the seconds hangs: end it with a traceback.
HANGS_AFTER_TIMES, HANGS_AFTER_SECONDS = 4, 600


def main() -> None:
    """Run, write the report, and exit with an error if the promise was not kept."""
    arguments = _parse()
    faulthandler.dump_traceback_later(HANGS_AFTER_TIMES * arguments.seconds + HANGS_AFTER_SECONDS, exit=True)
    began, logs = time.monotonic(), LOGS / f"{arguments.database}-{arguments.seed}"
    print(f"seed {arguments.seed}, {arguments.database}", flush=True)
    result = run(
        arguments.database,
        seed=arguments.seed,
        seconds=arguments.seconds,
        operations=arguments.operations,
        logs=logs,
        short_timeouts=not arguments.default_settings,
        report=lambda line: print(f"[{time.monotonic() - began:6.0f} s] {line}", flush=True),
    )
    if arguments.report:
        write_report(arguments.report, result)
    if not result.is_kept:
        sys.exit("\n".join(["NOT kept:", *result.violations, f"logs are in {logs}"]))
    print(
        f"kept: {result.acknowledged} acknowledged writes, {result.faults.total()} faults, nothing lost or duplicated"
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.drills.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to inject faults under load")
    parser.add_argument("--operations", type=int, default=0, help="minimum number of acknowledged writes")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="postgresql")
    parser.add_argument(
        "--default-settings",
        action="store_true",
        help="the service's default leases and intervals, and faults to match",
    )
    parser.add_argument("--report", type=Path, help="Markdown file to write")
    return parser.parse_args()


if __name__ == "__main__":
    main()
