"""The points of an operation at which a process's death leaves different states behind."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

# A process, and the name of a point in it.
Point = tuple[str, str]
# An API process responds to clients between two writes, and delegates writes to other threads, so no two of its points
# are equivalent.
ANSWERING = frozenset({"api"})


@dataclass(frozen=True)
class Hit:
    """A point that a process reached.

    Args:
        process: `api` or `worker`.
        instance: the execution of the operation that reached the point, unique among all processes.
        thread: the thread that reached it.
        content: a digest of what is written, if writes of one name differ. Two digests differ if the writes do.
    """

    process: str
    point: str
    instance: str = ""
    thread: str = ""
    content: str = ""


def all_points(hits: Sequence[Hit], counts: Callable[[str], bool]) -> list[Point]:
    """Every point that counts, once, in the order of its first hit."""
    return list(dict.fromkeys((each.process, each.point) for each in hits if counts(each.point)))


def crash_states(hits: Sequence[Hit], counts: Callable[[str], bool]) -> list[Point]:
    """The points that count, without those whose crash leaves the same state as another's.

    n writes in a row leave n + 1 states. A `before` that directly follows an `after` is dropped. This is sound because
    every external write has points, so between the two the process has only read and waited, and `kill -9` discards its
    memory and its open transactions in both cases: the external state is the same, some time later, and a recovery must
    tolerate any delay. It is sound only under these conditions, so all other points are kept:

    - "Directly" refers to one instance of the operation. The writes of other instances in between depend on their own
      timing, and have their own points.
    - The instance reached all its points in one thread and one process. Concurrent threads of one instance may write in
      another order.
    - Each hit of that point follows an `after`, because the process dies at the first hit, of any instance.
    - The `after` counts, so a process is killed there.
    - The process has no clients: a response is an external effect without a point.
    """
    replaced = _replaced(hits, counts)
    return [point for point in all_points(hits, counts) if point not in replaced]


def _replaced(hits: Sequence[Hit], counts: Callable[[str], bool]) -> set[Point]:
    replaceable: Mapping[Point, set[bool]] = defaultdict(set)
    for each, follows in _in_order(hits, counts):
        replaceable[each.process, each.point].add(follows and each.process not in ANSWERING)
    return {point for point, found in replaceable.items() if found == {True}}


def _in_order(hits: Sequence[Hit], counts: Callable[[str], bool]) -> list[tuple[Hit, bool]]:
    """Each hit, and whether it is a `before` that directly follows an `after` that counts."""
    last: dict[str, Hit] = {}
    found = []
    concurrent = _concurrent(hits)
    for each in hits:
        previous = last.get(each.instance)
        follows = each.instance not in concurrent and previous is not None and _stands_for(previous, each, counts)
        found.append((each, follows))
        last[each.instance] = each
    return found


def _stands_for(previous: Hit, each: Hit, counts: Callable[[str], bool]) -> bool:
    return previous.point.endswith(".after") and each.point.endswith(".before") and counts(previous.point)


def _concurrent(hits: Sequence[Hit]) -> set[str]:
    """The instances that reached points in more than one thread, or in unknown threads."""
    threads: Mapping[str, set[str]] = defaultdict(set)
    for each in hits:
        threads[each.instance].add(each.thread)
    return {instance for instance, found in threads.items() if not instance or len(found) > 1 or "" in found}
