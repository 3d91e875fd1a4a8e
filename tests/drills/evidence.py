"""The input of the checker: the clients' history, the store's rows, the engines' holdings and the API's lists."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shared.models import Conversation, Sandbox, SandboxTransition, StartTask
from shared.states import Desired
from tests.drills.requests import Entry


class SeenContainer(Protocol):
    """A container as an observer saw it. `state` has Docker's values."""

    @property
    def name(self) -> str: ...

    @property
    def state(self) -> str: ...

    @property
    def labels(self) -> Mapping[str, str]: ...


@dataclass(frozen=True)
class Evidence:
    """The state of everything after the service had time to settle.

    Args:
        is_expected: whether a sandbox may miss its desired state, because it cannot start, or because of an outside
            change to its container.
        strays: a message for each container or volume that belongs to no installation.
        listed: the status of each sandbox as the API lists it for its owner; None: the API was not read.
        reported: the acknowledged events, as (conversation, event).
        events: the stored events.
        resumed: the sandboxes whose containers were started or unpaused from outside.
        deadlines: the desired states that each sandbox's own deadlines may set without a request.
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
    is_expected: Callable[[Sandbox], bool] = lambda _: False
    deadlines: Mapping[str, set[Desired]] = field(default_factory=dict)
