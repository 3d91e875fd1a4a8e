"""The history of a sandbox as rows and bars: each status with its duration, and the phases of its last start."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from shared.clock import now
from shared.models import SandboxTransition

# The width of a whole bar, in units of the drawing.
WIDTH = 1000.0
# The worker's names of phases (`worker.sandboxes.status_writer`), in words for people.
PHASES = {
    "queue": "waits for a worker",
    "create": "image and container",
    "start": "container starts",
    "initialize": "warm sandbox gets its owner",
    "unpause": "container continues",
    "health": "agent server boots",
}


@dataclass(frozen=True)
class Span:
    """A status, or a phase of a start. `left` and `width` are its place in the drawing."""

    name: str
    seconds: float
    left: float = 0.0
    width: float = 0.0
    at: datetime | None = None
    reason: str | None = None
    pause_kind: str | None = None


@dataclass(frozen=True)
class History:
    """What happened to a sandbox.

    Args:
        spans: every status, oldest first; the last one is still in force.
        start: the phases of its last start that ended; empty if none did.
    """

    spans: list[Span]
    start: list[Span]


def describe_history(transitions: Sequence[SandboxTransition]) -> History:
    """The statuses of a sandbox and the phases of its last start, from its transitions, oldest first."""
    ends = [*(move.at for move in transitions[1:]), now()]
    spans = [
        Span(move.to_status, (end - move.at).total_seconds(), 0, 0, move.at, move.reason, move.pause_kind)
        for move, end in zip(transitions, ends, strict=False)  # without transitions, `ends` is longer
    ]
    return History(_scaled(spans), _scaled(_last_start(transitions)))


def _last_start(transitions: Sequence[SandboxTransition]) -> list[Span]:
    """The phases of the newest transition that has them."""
    measured = next((move for move in reversed(transitions) if move.phases), None)
    phases = measured.phases if measured and measured.phases else {}
    return [Span(PHASES.get(name, name), seconds) for name, seconds in phases.items()]


def _scaled(spans: Sequence[Span]) -> list[Span]:
    total = sum(max(0.0, span.seconds) for span in spans) or 1.0
    placed, left = [], 0.0
    for span in spans:
        width = max(0.0, span.seconds) / total * WIDTH
        placed.append(Span(span.name, span.seconds, left, width, span.at, span.reason, span.pause_kind))
        left += width
    return placed
