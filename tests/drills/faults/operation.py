"""Operations in which processes are killed: a user's request, or an event that a routine handles."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.drills.faults.runner import Runner

# The worker's periodic routines, which might do the work before the process with the job is killed.
ROUTINES = frozenset({"sweep", "resync", "events", "nodes", "health", "network"})

# Creates the subject of an operation, and returns its name.
Prepare = Callable[[Runner], str]
# Executes an operation on the subject, or asserts its effect.
Act = Callable[[Runner, str], None]


def no_subject(_runner: Runner) -> str:
    """Prepare an operation without a subject."""
    return ""


def no_check(_runner: Runner, _subject: str) -> None:
    """Add nothing to what the checker verifies."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation in which processes are killed.

    Args:
        owns: the routes, jobs and routines whose points belong to it.
        prepare: creates the subject, and returns its name.
        verify: asserts what the checker does not.
        holds: the routines that are held until the process is dead, so that none of them does the work.
        releases: those of `holds` that may run as soon as the operation is executed.
        settings: additional settings of the processes.
        writes: the kinds of writes whose points count, if other operations cover the rest; empty: all.
    """

    owns: frozenset[str]
    act: Act
    prepare: Prepare = no_subject
    verify: Act = no_check
    holds: frozenset[str] = ROUTINES
    releases: frozenset[str] = frozenset()
    settings: Mapping[str, str] = field(default_factory=dict)
    writes: frozenset[str] = frozenset()

    @property
    def recovery(self) -> frozenset[str]:
        """The owners of the points that may be reached during the recovery."""
        return self.owns | {"process", "sweep", "sandboxes.check"}

    def counts(self, point: str) -> bool:
        """Whether processes are killed at this point."""
        return not self.writes or point.rsplit("/", 1)[-1].rsplit(".", 1)[0] in self.writes


def routine(
    name: str, *, act: Act, prepare: Prepare = no_subject, verify: Act = no_check, owns: frozenset[str] = frozenset()
) -> Operation:
    """An operation that a routine handles; the routine is held until the act is done.

    Args:
        owns: the other owners of points of the operation.
    """
    return Operation(
        owns=owns | {name},
        prepare=prepare,
        act=act,
        verify=verify,
        holds=ROUTINES | {name},
        releases=frozenset({name}),
    )
