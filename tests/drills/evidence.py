"""All that the checker compares: what clients were told, what the store holds, what the engines hold, what is shown."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shared.models import Conversation, Sandbox, SandboxTransition, StartTask
from shared.states import Desired
from tests.drills.requests import Entry


class SeenContainer(Protocol):
    """A container as an observer saw it; `state` is Docker's word for it."""

    @property
    def name(self) -> str: ...

    @property
    def state(self) -> str: ...

    @property
    def labels(self) -> Mapping[str, str]: ...


@dataclass(frozen=True)
class Evidence:
    """All that was found once the service was given time to settle.

    Args:
        excused: whether a sandbox has good reason not to be in its desired state: it can't start, or an outside change
            hit its container. All others must be.
        strays: what the engines hold that is attributable to no installation, in words.
        listed: the status of each sandbox that the service lists for its owner over the wire; None: it was not asked.
        reported: the events, as (conversation, event), that were acknowledged.
        events: those that are stored.
        resumed: the sandboxes whose containers were started or unpaused from outside.
        deadlines: what each sandbox with deadlines of its own may become without a request.
    """

    history: Sequence[Entry] = ()
    sandboxes: Sequence[Sandbox] = ()
    transitions: Sequence[SandboxTransition] = ()
    start_tasks: Sequence[StartTask] = ()
    conversations: Sequence[Conversation] = ()
    containers: Sequence[SeenContainer] = ()
    volumes: Sequence[str] = ()
    strays: Sequence[str] = ()
    listed: Mapping[str, str] | None = None
    reported: Sequence[tuple[str, str]] = ()
    events: Sequence[tuple[str, str]] = ()
    resumed: Collection[str] = ()
    excused: Callable[[Sandbox], bool] = lambda _: False
    deadlines: Mapping[str, set[Desired]] = field(default_factory=dict)
