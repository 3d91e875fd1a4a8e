"""The comparison of a benchmark's figures with the kept ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench.__main__ import MEASURES
from tests.stages.benchmarks import main
from tests.stages.plan import BENCHMARKS

MACHINE = {"processors": 2, "model": "a processor", "load_average": 1.5}
LIST, QUEUE = "list of sandboxes", "queue"


def figures(*, ratio: float = 2.0, seconds: float = 0.1, machine: dict[str, Any] = MACHINE) -> dict[str, Any]:
    """A file of `make bench`: a figure with a baseline, and one without."""
    return {
        "at": "2026-11-23T08:00:00+00:00",
        "machine": machine,
        "subject": "sqlite",
        "figures": [
            {"name": LIST, "p50": {"median": seconds}, "ratio": ratio},
            {"name": QUEUE, "p50": {"median": seconds}},
        ],
    }


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The file of the kept figures."""
    path = tmp_path / "kept.json"
    path.write_text("{}")
    assert run(path, figures(), "--keep") == 0
    return path


def run(kept: Path, found: dict[str, Any], *options: str, part: str = "bench-store-sqlite") -> int:
    path = kept.with_name(f"{part}.json")
    path.write_text(json.dumps(found))
    return main([str(path), "--kept", str(kept), *options])


@pytest.mark.parametrize(("ratio", "status"), [(2.0, 0), (2.5, 0), (2.7, 1), (1.5, 0), (1.3, 1)])
def test_figure_that_differs_by_a_third_is_bad(kept: Path, ratio: float, status: int) -> None:
    assert run(kept, figures(ratio=ratio)) == status


def test_figure_without_a_baseline_is_compared_on_the_same_machine(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(kept, figures(seconds=0.2)) == 1
    assert capsys.readouterr().out == "queue: p50 0.2 instead of 0.1 (+100%)\n"
    assert run(kept, figures(seconds=0.2, machine=MACHINE | {"processors": 64})) == 0


def test_figure_that_is_missing_or_new_is_bad(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = figures()
    found["figures"][1]["name"] = "webhooks"
    assert run(kept, found) == 1
    assert capsys.readouterr().out == "queue is no longer measured\nwebhooks is not kept yet\n"


def test_part_without_kept_figures_is_bad(kept: Path) -> None:
    assert run(kept, figures(), part="bench-store-postgresql") == 1


def test_every_measure_is_in_one_part_of_the_nightly_run() -> None:
    assert sorted(name for part in BENCHMARKS.values() for name in part.split(",")) == sorted(MEASURES)
