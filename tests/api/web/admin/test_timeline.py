"""The history of a sandbox as spans."""

from datetime import timedelta

from api.web.admin.rendering import describe_seconds
from api.web.admin.timeline import WIDTH, describe_history
from shared.clock import now
from shared.models import SandboxTransition

BEGAN = now() - timedelta(hours=1)


def move(seconds: float, status: str, phases: dict[str, float] | None = None) -> SandboxTransition:
    return SandboxTransition(sandbox_id="s", to_status=status, at=BEGAN + timedelta(seconds=seconds), phases=phases)


def test_each_status_lasts_until_the_next() -> None:
    history = describe_history([move(0, "STARTING"), move(4, "RUNNING"), move(1800, "PAUSED")])
    assert [(span.name, span.seconds) for span in history.spans[:2]] == [("STARTING", 4), ("RUNNING", 1796)]
    assert history.spans[2].seconds >= 1800  # the last span has no end
    assert [round(span.left + span.width, 3) for span in history.spans] == [
        *(round(span.left, 3) for span in history.spans[1:]),
        WIDTH,
    ]
    assert history.start == []


def test_clock_set_back_draws_no_negative_span() -> None:
    history = describe_history([move(5, "STARTING"), move(4, "RUNNING")])
    assert all(span.width >= 0 for span in history.spans)
    assert describe_history([]).spans == []


def test_phases_are_those_of_the_last_start() -> None:
    history = describe_history(
        [move(4, "RUNNING", {"queue": 9}), move(9, "PAUSED"), move(12, "RUNNING", {"odd": 0, "health": 2})]
    )
    assert [(span.name, span.seconds) for span in history.start] == [("odd", 0), ("agent server boots", 2)]


def test_durations_are_exact_while_they_are_short() -> None:
    seconds = (-1, 0.04, 9.94, 12.3, 61, 3_600, 5_430, 172_800, 1e7)
    shown = ["0.0 s", "0.0 s", "9.9 s", "12 s", "1 min", "1 h 0 min", "1 h 30 min", "2 d", "115 d"]
    assert list(map(describe_seconds, seconds)) == shown
