"""Availability of a sandbox for HTTP traffic. Pure functions: no store, no clock (decision 26)."""

from enum import StrEnum, auto
from typing import Protocol

from shared.states import Desired, Status


class HasState(Protocol):
    """The columns of a sandbox that its availability depends on."""

    @property
    def desired(self) -> str:
        """The desired state."""

    @property
    def status(self) -> str:
        """The observed state."""

    @property
    def generation(self) -> int:
        """The number of the desired state."""

    @property
    def observed_generation(self) -> int:
        """The newest generation that a worker has reconciled."""


class Availability(StrEnum):
    """Whether a sandbox can serve a request."""

    RUNS = auto()
    # A worker is reconciling it. The availability is known when that generation is observed.
    SETTLES = auto()
    # Paused, or about to be. A resume brings it back.
    SLEEPS = auto()
    # In ERROR, until its owner resumes or deletes it.
    FAILED = auto()
    GONE = auto()


def availability_of(row: HasState) -> Availability:
    """Compute the availability from the desired and the observed state."""
    is_observed = row.generation == row.observed_generation
    if row.desired == Desired.DELETED or row.status in (Status.DELETING, Status.DELETED):
        return Availability.GONE
    if row.desired != Desired.RUNNING and not is_observed and row.status != Status.ERROR:
        return Availability.SLEEPS
    match row.status:
        case Status.RUNNING:
            return Availability.RUNS
        case Status.PAUSED if is_observed:
            return Availability.SLEEPS
        case Status.ERROR if is_observed:
            return Availability.FAILED
        case _:
            return Availability.SETTLES
