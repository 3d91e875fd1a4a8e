"""The pairs of deaths that leave different states behind.

A recovery repeats what is left of its operation. So a process that dies before its third write, and again before the
fifth during the recovery, leaves the same state as one that dies before its fourth write, and again before the fifth:
in both cases, four writes are done, and a recovery has begun. One pair of each state is enough.

What a death leaves behind is described by two multisets: what was done up to it, and what an uninterrupted recovery
still did afterwards. Each counts

- the begins and the ends of writes, by their kind, by who made them, and for a commit by what it wrote: a claim is not
  a change of status. All jobs on one kind of subject count as one, since a recovery's job has another name than the
  operation's.
- begun jobs, because a job's message leaves the broker when the job begins.

Pairs with the same two multisets are equivalent under the conditions of `crash_states`. Therefore:

- A second death before the recovery's first write leaves the same state as the first death alone, so it is no pair.
- The writes of a process's start do not concern the operation: they count for no state. Each of their points is one
  pair of each operation, and all pairs within a start are kept.
- A death while two jobs or routines were under way has a state of its own: the progress of the other one differs from
  run to run.
- A second death of an API process has a state of its own, because its clients may have got a response before. A first
  death counts as a part of the state, because the client got no response.

`test_pairs.py` compares what pairs of one state really leave behind.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from tests.drills.faults.crash_states import ANSWERING, Hit, Point

# The owner of the writes of a process's start.
START = "process"


@dataclass(frozen=True)
class Recovery:
    """A recorded recovery from the first death of a pair.

    Args:
        operation: the operation's hits without a death.
        first: the point of the death.
        hits: the hits of the recovery.
    """

    operation: Sequence[Hit]
    first: Point
    hits: Sequence[Hit]


# A recovery, and the second point.
Deaths = tuple[Recovery, Point]
# Chooses the points of a recovery at which a process is killed.
Choose = Callable[[Sequence[Hit]], Sequence[Point]]


def all_pairs(recoveries: Iterable[Recovery], choose: Choose) -> Iterator[Deaths]:
    """All pairs of deaths, in the order of the recoveries."""
    return ((recovery, second) for recovery in recoveries for second in choose(recovery.hits))


def distinct_pairs(recoveries: Sequence[Recovery], choose: Choose, chance: Random) -> list[Deaths]:
    """One pair for each state; `chance` chooses it."""
    return [chance.choice(pairs) for pairs in group_pairs(recoveries, choose)]


def group_pairs(recoveries: Sequence[Recovery], choose: Choose) -> list[Sequence[Deaths]]:
    """Group the pairs by the state that they leave behind, without the states that a single death already leaves."""
    groups: defaultdict[Hashable, list[Deaths]] = defaultdict(list)
    for recovery, second in all_pairs(recoveries, choose):
        groups[_second_state(recovery, second)].append((recovery, second))
    after_one = {_first_state(recovery) for recovery in recoveries}
    return [pairs for state, pairs in groups.items() if state not in after_one]


def _first_state(recovery: Recovery) -> Hashable:
    return _state(recovery, Counter(), _count(recovery.hits))


def _second_state(recovery: Recovery, second: Point) -> Hashable:
    is_unique = _is_concurrent(recovery.operation, recovery.first) or _is_concurrent(recovery.hits, second)
    if is_unique or second[0] in ANSWERING:
        return recovery.first, second
    if _owner(second[1]) == START:
        return recovery.first if _owner(recovery.first[1]) == START else None, second
    done = _done(recovery.hits, second)
    return _state(recovery, done, _count(recovery.hits) - done)


def _state(recovery: Recovery, done: Counter[Hashable], left: Counter[Hashable]) -> Hashable:
    done = _done(recovery.operation, recovery.first) + done
    is_answered = recovery.first[0] not in ANSWERING
    return is_answered, frozenset(done.items()), frozenset(left.items())


def _done(hits: Sequence[Hit], death: Point) -> Counter[Hashable]:
    """Count what was done until the death. A process that dies before a write has not begun it."""
    until = list(_until(hits, death))
    done = _count(until)
    if death[1].endswith(".before"):
        done -= Counter([_effect(until[-1])])
    return done


def _until(hits: Sequence[Hit], death: Point) -> Iterator[Hit]:
    """The hits until the first one of the point.

    If the point is a worker's, all hits of the API process count, because that process lives on. If the point is an API
    process's, the worker's hits do not count: they follow the death, and belong to the recovery.
    """
    process, point = death
    if process not in ANSWERING:
        yield from (each for each in hits if each.process != process)
    for each in hits:
        if each.process == process:
            yield each
            if each.point == point:
                return


def _is_concurrent(hits: Sequence[Hit], death: Point) -> bool:
    """Whether the dying process also executes another job or routine, with hits before the death and after it."""
    own = [each for each in hits if each.process == death[0]]
    place = next(number for number, each in enumerate(own) if each.point == death[1])
    before, after = ({each.instance for each in part} for part in (own[:place], own[place:]))
    return bool(before & after - {own[place].instance})


def _count(hits: Iterable[Hit]) -> Counter[Hashable]:
    """Count the begins and ends of writes, and the jobs that began."""
    counted: Counter[Hashable] = Counter()
    begun: set[str] = set()
    for each in hits:
        if _owner(each.point) == START:
            continue
        if _is_job(each.point) and each.instance not in begun:
            begun.add(each.instance)
            counted[_subject(each.point)] += 1
        counted[_effect(each)] += 1
    return counted


def _effect(hit: Hit) -> Hashable:
    return _subject(hit.point), hit.point.rpartition("/")[2], hit.content


def _owner(point: str) -> str:
    return point.rsplit("/", 2)[0]


def _subject(point: str) -> str:
    """The kind of subject if the owner is a job; otherwise the owner's name."""
    owner = _owner(point)
    return owner.partition(".")[0] if _is_job(point) else owner


def _is_job(point: str) -> bool:
    """Whether the owner is a job, such as `sandboxes.start`, and not a route or a routine."""
    owner = _owner(point)
    return "." in owner and " " not in owner
