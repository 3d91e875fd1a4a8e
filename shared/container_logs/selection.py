"""The lines of a sandbox's kept logs that are to be shown: the last ones, or those after a cursor."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from shared.container_logs.printed_text import PrintedLine, read_stored
from shared.models import Sandbox, SandboxLog
from shared.states import Status

# The index of a log, and that of a line in it.
Place = tuple[int, int]


class ShownLog(NamedTuple):
    """A container's log, and its lines to show.

    Args:
        is_cut: whether earlier lines are missing.
    """

    log: SandboxLog
    lines: Sequence[PrintedLine]
    is_cut: bool


class Selection(NamedTuple):
    """What is shown of a sandbox's logs.

    Args:
        shown: the log of each container, oldest first.
        cursor: refers to the last line; None: no line is known yet.
    """

    shown: Sequence[ShownLog]
    cursor: str | None


def select_lines(logs: Sequence[SandboxLog], *, tail: int, after: str | None = None) -> Selection:
    """Select lines.

    Args:
        logs: the logs of a sandbox's containers, oldest first.
        tail: the max number of lines, of all containers together.
        after: the cursor of an earlier selection; only later lines are selected.
    """
    printed = [(log, list(read_stored(log.text))) for log in logs]
    shown: list[ShownLog] = []
    place = _find_last_shown(printed, after)
    for number, (log, lines) in reversed(list(enumerate(printed))):
        later = [line for index, line in enumerate(lines) if _is_later(line, (number, index), after, place)]
        kept = later[max(0, len(later) - tail) :]
        tail -= len(kept)
        shown.append(ShownLog(log, kept, log.is_cut or len(kept) < len(later)))
    return Selection(shown[::-1], _cursor([line for _, lines in printed for line in lines], after))


def show_lines(
    sandbox: Sandbox, logs: Sequence[SandboxLog], *, is_live: bool, tail: int, after: str | None = None
) -> dict[str, Any]:
    """Select lines of a sandbox's logs, in the form of the API's responses; `is_live`: the logs were just read."""
    selection = select_lines(logs, tail=tail, after=after)
    return {
        "sandbox_id": sandbox.id,
        "is_live": is_live,
        "is_deleted": sandbox.status == Status.DELETED,
        "cursor": selection.cursor,
        "containers": [_show(shown) for shown in selection.shown],
    }


def _show(shown: ShownLog) -> dict[str, Any]:
    log = shown.log
    return {
        "container_id": log.container_id,
        "cause": log.cause or None,
        "read_at": log.read_at.isoformat(),
        "is_cut": shown.is_cut,
        "lines": [{"at": line.at, "text": line.text} for line in shown.lines],
    }


def _cursor(lines: Sequence[PrintedLine], before: str | None) -> str | None:
    """The latest time of all lines, followed by the time of the last line if that is earlier.

    It is earlier if a clock was set back, or if the last line has no end yet.
    """
    if not lines:
        return before
    latest, last = max([*(line.at for line in lines), *_times(before)[:1]]), lines[-1].at
    return latest if latest == last else f"{latest} {last}"


def _times(cursor: str | None) -> list[str]:
    return cursor.split(" ", 1) if cursor else []


def _find_last_shown(printed: Sequence[tuple[SandboxLog, Sequence[PrintedLine]]], cursor: str | None) -> Place | None:
    """The place of the last line of the earlier selection, if that line is still stored."""
    last = _times(cursor)[-1:]
    places = (
        (number, index)
        for number, (_, lines) in enumerate(printed)
        for index, line in enumerate(lines)
        if [line.at] == last
    )
    return max(places, default=None)


def _is_later(line: PrintedLine, at: Place, cursor: str | None, last_shown: Place | None) -> bool:
    return not cursor or line.at > _times(cursor)[0] or (last_shown is not None and at > last_shown)
