"""What traffic to a sandbox finds there. Pure: no store, no clock (decision 26)."""

from collections.abc import Mapping, Sequence
from enum import StrEnum, auto
from typing import Any, Protocol

from shared.states import Desired, Status

# The name of its port among those that are exposed.
AGENT_SERVER = "AGENT_SERVER"


class HasState(Protocol):
    """What of a sandbox's row it depends on."""

    @property
    def desired(self) -> str:
        """The wish."""

    @property
    def status(self) -> str:
        """The fact."""

    @property
    def generation(self) -> int:
        """Which wish it is."""

    @property
    def observed_generation(self) -> int:
        """The last one that a worker has answered."""


class Availability(StrEnum):
    """How a sandbox stands towards a request."""

    RUNS = auto()
    # A worker is at it, and when it has answered the wish there is more to say.
    SETTLES = auto()
    # Paused, or about to be: it runs again once somebody wishes that.
    SLEEPS = auto()
    # In ERROR, until its owner says what to do.
    FAILED = auto()
    GONE = auto()


def availability_of(row: HasState) -> Availability:
    """How a sandbox stands, by its wish and its last fact."""
    answered = row.generation == row.observed_generation
    if row.desired == Desired.DELETED or row.status in (Status.DELETING, Status.DELETED):
        return Availability.GONE
    if row.desired != Desired.RUNNING and not answered and row.status != Status.ERROR:
        return Availability.SLEEPS
    match row.status:
        case Status.RUNNING:
            return Availability.RUNS
        case Status.PAUSED if answered:
            return Availability.SLEEPS
        case Status.ERROR if answered:
            return Availability.FAILED
        case _:
            return Availability.SETTLES


def agent_server(exposed_urls: Sequence[Mapping[str, Any]] | None) -> str | None:
    """Where a sandbox's agent server answers, without a trailing slash, if it is exposed."""
    urls = (str(url["url"]).rstrip("/") for url in exposed_urls or () if url["name"] == AGENT_SERVER)
    return next(urls, None)
