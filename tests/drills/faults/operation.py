"""What an operation is: something that is asked for, or happens, in which processes are killed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.drills.faults.runner import Runner

# What the worker does by itself, and might do in place of the job that is to be killed.
ROUTINES = frozenset({"sweep", "resync", "events", "nodes", "health", "network"})

# Makes what an operation is done to, and names that.
Prepare = Callable[[Runner], str]
# Does something to it; or asserts something of it.
Act = Callable[[Runner, str], None]


def nothing(_runner: Runner) -> str:
    """Some things are done to nothing."""
    return ""


def no_more(_runner: Runner, _subject: str) -> None:
    """What the checker asks is all."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One thing that is asked for, or happens.

    Args:
        owns: the routes, jobs and routines whose points belong to it.
        prepare: makes what it is done to, and names that.
        verify: what must be so afterwards, beside what the checker asks.
        holds: the routines that are held back until the process is dead, so that nothing else does the work.
        lets: those of them that are let go as soon as it is done.
        settings: of the processes, beside their own.
        writes: which of its points count, where the others are another operation's too; none: all.
    """

    owns: frozenset[str]
    act: Act
    prepare: Prepare = nothing
    verify: Act = no_more
    holds: frozenset[str] = ROUTINES
    lets: frozenset[str] = frozenset()
    settings: Mapping[str, str] = field(default_factory=dict)
    writes: frozenset[str] = frozenset()

    @property
    def recovery(self) -> frozenset[str]:
        """Whose points may be met while what was broken off is carried out."""
        return self.owns | {"process", "sweep", "sandboxes.check"}

    def counts(self, point: str) -> bool:
        """Whether processes are to die at this one of its points."""
        return not self.writes or point.rsplit("/", 1)[-1].rsplit(".", 1)[0] in self.writes


def routine(
    name: str, *, act: Act, prepare: Prepare = nothing, verify: Act = no_more, owns: frozenset[str] = frozenset()
) -> Operation:
    """Something that a routine sees to, which waits until it has happened.

    Args:
        owns: what else belongs to it, beside the routine.
    """
    return Operation(
        owns=owns | {name},
        prepare=prepare,
        act=act,
        verify=verify,
        holds=ROUTINES | {name},
        lets=frozenset({name}),
    )
