"""The lines of a sandbox's kept logs that are to be shown: the last ones, or those after a cursor."""

from collections.abc import Sequence
from typing import NamedTuple

from shared.container_logs.printed_text import PrintedLine, read_stored
from shared.models import SandboxLog


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
        shown: of each container, oldest first.
        cursor: names the last line; None: none is known yet.
    """

    shown: Sequence[ShownLog]
    cursor: str | None


def select_lines(logs: Sequence[SandboxLog], *, tail: int, after: str | None = None) -> Selection:
    """Select lines.

    Args:
        logs: of a sandbox's containers, oldest first.
        tail: max number of lines, of all containers together.
        after: the cursor of an earlier selection: only later lines.
    """
    printed = [(log, list(read_stored(log.text))) for log in logs]
    shown: list[ShownLog] = []
    for log, lines in reversed(printed):
        later = [line for line in lines if after is None or line.at > after]
        kept = later[max(0, len(later) - tail) :]
        tail -= len(kept)
        shown.append(ShownLog(log, kept, log.is_cut or len(kept) < len(later)))
    cursor = max((line.at for _, lines in printed for line in lines), default=None)
    return Selection(shown[::-1], max(filter(None, (cursor, after)), default=None))
