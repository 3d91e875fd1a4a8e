"""Compare the figures of `make bench` with those that the repository keeps.

    python -m tests.stages.benchmarks var/log/bench-store-sqlite.json           # fails where a figure differs by 30 %
    python -m tests.stages.benchmarks var/log/bench-store-sqlite.json --keep    # keeps these instead

Figures are kept by the name of their file: one part of the benchmarks on one database. A figure with a baseline is
compared as a multiple of it, on every machine. One without is compared on machines with the same processors only.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tests.services.directories import REPOSITORY

KEPT = REPOSITORY / "tests" / "bench" / "kept.json"
TOLERANCE = 0.3


def digest(found: dict[str, Any]) -> dict[str, Any]:
    """The part of `make bench`'s file that the repository keeps."""
    machine = {name: found["machine"][name] for name in ("processors", "model")}
    figures = {
        figure["name"]: {name: round(value, 6) for name, value in _values(figure).items()}
        for figure in found["figures"]
    }
    return {"at": found["at"], "machine": machine, "figures": figures}


def _values(figure: dict[str, Any]) -> dict[str, float]:
    ratio = {"ratio": figure["ratio"]} if "ratio" in figure else {}
    return {"p50": figure["p50"]["median"]} | ratio


def compare(kept: dict[str, Any] | None, found: dict[str, Any]) -> list[str]:
    """The figures that differ too much, are missing, or are new."""
    if kept is None:
        return ["nothing is kept for this part yet"]
    before, after = kept["figures"], found["figures"]
    names = {"is no longer measured": before.keys() - after.keys(), "is not kept yet": after.keys() - before.keys()}
    problems = [f"{name} {words}" for words, those in names.items() for name in sorted(those)]
    is_same_machine = kept["machine"] == found["machine"]
    for name in before.keys() & after.keys():
        kind = "ratio" if "ratio" in before[name] and "ratio" in after[name] else "p50"
        if kind == "ratio" or is_same_machine:
            problems += _compare(name, kind, before[name][kind], after[name][kind])
    return problems


def _compare(name: str, kind: str, before: float, after: float) -> list[str]:
    change = after / before - 1
    return [f"{name}: {kind} {after:.4g} instead of {before:.4g} ({change:+.0%})"] if abs(change) > TOLERANCE else []


def main(arguments: list[str]) -> int:
    """Compare the figures or keep them; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.stages.benchmarks", description=__doc__)
    parser.add_argument("found", type=Path, help="the file that `make bench JSON=` wrote")
    parser.add_argument("--keep", action="store_true", help="keep these figures")
    parser.add_argument("--kept", type=Path, default=KEPT, help="the file of the kept figures")
    options = parser.parse_args(arguments)
    found = json.loads(options.found.read_text())
    kept = json.loads(options.kept.read_text())
    part = options.found.stem
    if options.keep:
        options.kept.write_text(json.dumps(kept | {part: digest(found)}, indent=1) + "\n")
        return 0
    problems = compare(kept.get(part), digest(found))
    sys.stdout.writelines(f"{problem}\n" for problem in problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
