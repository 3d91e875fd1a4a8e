"""Which of the points that an operation passed leave different worlds behind when a process dies there."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

# A process, and the name of a point in it.
Point = tuple[str, str]
# An API process answers its clients between two writes, and hands writes to other threads: no two of its points are
# alike.
ANSWERING = frozenset({"api"})


@dataclass(frozen=True)
class Meeting:
    """A point that was met.

    Args:
        process: `api` or `worker`.
        instance: which carrying out of the operation met it, unique among all processes.
        thread: the thread that met it.
    """

    process: str
    point: str
    instance: str = ""
    thread: str = ""


def all_points(meetings: Sequence[Meeting], counts: Callable[[str], bool]) -> list[Point]:
    """Every point that counts, once, in the order of the first meeting."""
    return list(dict.fromkeys((each.process, each.point) for each in meetings if counts(each.point)))


def crash_states(meetings: Sequence[Meeting], counts: Callable[[str], bool]) -> list[Point]:
    """The points that count, without those whose crash another one stands for: n writes in a row leave n + 1 worlds.

    A `before` that directly follows an `after` is dropped. This is sound because every write to the world outside has
    points, so between the two the process has only read and waited, and `kill -9` takes its memory and its open
    transactions in both cases: the world at the second moment is the world at the first one, some time later, and what
    recovers must cope with any delay. It is sound only under these conditions, so all others are kept:

    - "Directly" is judged within one instance of the operation. What other instances write in between is up to their
      own timing, and is killed at their own points.
    - The instance has met all its points in one thread and one process. Concurrent threads of one instance may have
      written in another order.
    - Each meeting of that name follows an `after`, because the process dies at the first meeting, of any instance.
    - The `after` counts, so that a process does die there.
    - The process answers no clients: an answer is a change outside that has no point.
    """
    replaced = _replaced(meetings, counts)
    return [point for point in all_points(meetings, counts) if point not in replaced]


def _replaced(meetings: Sequence[Meeting], counts: Callable[[str], bool]) -> set[Point]:
    verdicts: Mapping[Point, set[bool]] = defaultdict(set)
    for each, follows in _in_order(meetings, counts):
        verdicts[each.process, each.point].add(follows and each.process not in ANSWERING)
    return {point for point, found in verdicts.items() if found == {True}}


def _in_order(meetings: Sequence[Meeting], counts: Callable[[str], bool]) -> list[tuple[Meeting, bool]]:
    """Each meeting, and whether it is a `before` that directly follows an `after` that counts."""
    last: dict[str, Meeting] = {}
    found = []
    concurrent = _concurrent(meetings)
    for each in meetings:
        previous = last.get(each.instance)
        follows = each.instance not in concurrent and previous is not None and _stands_for(previous, each, counts)
        found.append((each, follows))
        last[each.instance] = each
    return found


def _stands_for(previous: Meeting, each: Meeting, counts: Callable[[str], bool]) -> bool:
    return previous.point.endswith(".after") and each.point.endswith(".before") and counts(previous.point)


def _concurrent(meetings: Sequence[Meeting]) -> set[str]:
    """The instances that have met points in more than one thread, and those of which that is not known."""
    threads: Mapping[str, set[str]] = defaultdict(set)
    for each in meetings:
        threads[each.instance].add(each.thread)
    return {instance for instance, found in threads.items() if not instance or len(found) > 1 or "" in found}
