"""What was asked for and answered, and which desired states are therefore possible at the end."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from shared.states import Desired


class Outcome(StrEnum):
    """What a client knows of a request."""

    INVOKED = "invoke"  # no answer yet: it may have happened or not, or may happen yet
    OK = "ok"
    FAILED = "fail"  # refused: it did not happen
    LOST = "lost"  # never answered: it has happened by now, or never will


class Verb(StrEnum):
    """What clients ask for."""

    START = "start"
    PAUSE = "pause"
    STOP = "stop"
    RESUME = "resume"
    DELETE = "delete"
    CONVERSE = "converse"
    # Of a start task: it is cancelled, its conversation is deleted.
    CANCEL = "cancel"
    FORGET = "forget"


DESIRED_STATES = {
    Verb.START: Desired.RUNNING,
    Verb.RESUME: Desired.RUNNING,
    Verb.PAUSE: Desired.PAUSED,
    Verb.STOP: Desired.STOPPED,
    Verb.DELETE: Desired.DELETED,
}


@dataclass(frozen=True)
class Entry:
    """One line of a history: request number `call` was sent, or was answered.

    Args:
        subject: the sandbox's id, or the start task's; None as long as the client has not learnt it.
    """

    call: int
    outcome: Outcome
    verb: Verb
    subject: str | None = None


@dataclass(frozen=True)
class Request:
    """One request about one sandbox: the places in the history between which it took effect, if it did."""

    desired: Desired
    began: float
    ended: float
    acknowledged: bool


def last_desired_states(history: Iterable[Entry]) -> dict[str, set[Desired]]:
    """The possible desired states of each acknowledged sandbox at the end of the history.

    Of two requests at the same time the order is unknown: either may have come last. One that was not answered counts
    too, unless another began after it was over. Nothing overtakes an acknowledged delete.
    """
    return {
        sandbox_id: _possible(requests)
        for sandbox_id, requests in requests_by_sandbox(history).items()
        if any(request.acknowledged for request in requests)
    }


def requests_by_sandbox(history: Iterable[Entry]) -> dict[str, list[Request]]:
    """The requests that may have taken effect, by the sandboxes that they were about."""
    began: dict[int, int] = {}
    found: dict[str, list[Request]] = defaultdict(list)
    unanswered: dict[int, Entry] = {}
    for place, entry in enumerate(history):
        if entry.verb not in DESIRED_STATES:
            continue
        if entry.outcome == Outcome.INVOKED:
            began[entry.call], unanswered[entry.call] = place, entry
            continue
        unanswered.pop(entry.call, None)
        if entry.outcome != Outcome.FAILED and entry.subject:
            request = Request(
                DESIRED_STATES[entry.verb], began.get(entry.call, place), place, entry.outcome == Outcome.OK
            )
            found[entry.subject].append(request)
    for entry in unanswered.values():
        if entry.subject:
            found[entry.subject].append(
                Request(DESIRED_STATES[entry.verb], began[entry.call], math.inf, acknowledged=False)
            )
    return found


def _possible(requests: Sequence[Request]) -> set[Desired]:
    if any(request.acknowledged and request.desired == Desired.DELETED for request in requests):
        return {Desired.DELETED}
    last_began = max(request.began for request in requests if request.acknowledged)
    return {request.desired for request in requests if request.ended >= last_began}
