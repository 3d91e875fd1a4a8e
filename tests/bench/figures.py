"""The figures of a benchmark: each measure beside its baseline, over several runs."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Runs = list[list[float]]


@dataclass(frozen=True)
class Spread:
    """A percentile over several runs: the median, the minimum and the maximum."""

    median: float
    least: float
    greatest: float

    def __str__(self) -> str:
        """The numbers with their significant digits."""
        return f"{_short(self.median)} ({_short(self.least)}–{_short(self.greatest)})"


@dataclass(frozen=True)
class Figure:
    """One measure. Times are in seconds, rates per second. `runs` has each run's samples, `bare` the baseline's."""

    name: str
    runs: Runs
    baseline: str = ""
    bare: Runs = field(default_factory=list)
    # The goal as text, and a function that tells whether the figure reaches it.
    goal: str = ""
    check: Callable[["Figure"], bool] | None = None
    unit: str = "ms"

    def at(self, part: float) -> Spread:
        """The percentile of each run's samples."""
        return _spread(self.runs, part)

    def bare_at(self, part: float) -> Spread:
        """The percentile of each run's samples of the baseline."""
        return _spread(self.bare, part)

    def over_all(self, part: float) -> float:
        """The percentile of the samples of all runs together."""
        return percentile([value for run in self.runs for value in run], part)

    @property
    def ratio(self) -> float:
        """The median of the runs' ratios of the figure's median to the baseline's."""
        pairs = zip(self.runs, self.bare, strict=True)
        return statistics.median(percentile(measured, 0.5) / percentile(theirs, 0.5) for measured, theirs in pairs)

    @property
    def is_reached(self) -> bool | None:
        """Whether the figure reaches its goal; None: it has no goal."""
        return self.check(self) if self.check else None

    def document(self) -> dict[str, Any]:
        """The figure as a JSON object."""
        shown: dict[str, Any] = {"name": self.name, "unit": self.unit, "goal": self.goal, "reached": self.is_reached}
        shown |= {"runs": self.runs, "baseline": self.baseline, "baseline_runs": self.bare}
        shown |= {f"p{round(part * 100)}": asdict(self.at(part)) for part in (0.5, 0.95, 0.99)}
        return shown | ({"ratio": self.ratio} if self.bare else {})


COLUMNS = ("measure", "p50", "p95", "p99 of all", "baseline", "its p50", "ratio", "goal", "reached")
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"
VERDICTS: Mapping[bool | None, str] = {True: "yes", False: "**no**", None: ""}


def line(figure: Figure) -> str:
    """A row of the table."""
    factor = 1000 if figure.unit == "ms" else 1

    def show(spread: Spread) -> str:
        return str(Spread(*(value * factor for value in (spread.median, spread.least, spread.greatest))))

    name = f"{figure.name}, {figure.unit}" if figure.unit else figure.name
    bare = [figure.baseline, show(figure.bare_at(0.5)), f"{figure.ratio:.2f}"] if figure.bare else ["", "", ""]
    measured = [show(figure.at(0.5)), show(figure.at(0.95)), _short(figure.over_all(0.99) * factor)]
    return f"| {' | '.join([name, *measured, *bare, figure.goal, VERDICTS[figure.is_reached]])} |"


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest value that at least that part of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(part * len(ordered) + 0.5) - 1))]


def _spread(runs: Runs, part: float) -> Spread:
    found = [statistics.median(run) if part == 0.5 else percentile(run, part) for run in runs]
    return Spread(statistics.median(found), min(found), max(found))


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
