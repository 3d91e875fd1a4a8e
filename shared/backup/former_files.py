"""Former files: a file that a new one would replace is renamed, because an operator may need it."""

import sys
from collections.abc import Sequence
from pathlib import Path

from shared.clock import now

# The suffixes that SQLite adds to a database's name for its log. Without the log, the last transactions may be missing.
LOGS = ("-wal", "-shm")
DATABASE = (*LOGS, "")


def keep(path: Path, suffixes: Sequence[str] = ("",)) -> None:
    """Rename a file, and those that have its name with a suffix, to `NAME.before-TIME`, and print that name."""
    kept = path.with_name(f"{path.name}.before-{now():%Y%m%dT%H%M%S.%f}")
    found = [suffix for suffix in suffixes if path.with_name(path.name + suffix).exists()]
    for suffix in found:
        path.with_name(path.name + suffix).rename(kept.with_name(kept.name + suffix))
    if found:
        print(f"{path} was in the way, and is now {kept}", file=sys.stderr)  # noqa: T201 - of a command, or a start
