"""The history of requests, and the final desired states that it permits."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from shared.states import Desired


class Outcome(StrEnum):
    """What a client knows about a request."""

    INVOKED = "invoke"  # no response yet: the request may have taken effect, or may still do so
    OK = "ok"
    FAILED = "fail"  # refused: the request had no effect
    LOST = "lost"  # no response: the request has taken effect by now, or never will


class Verb(StrEnum):
    """The kinds of requests."""

    START = "start"
    PAUSE = "pause"
    STOP = "stop"
    RESUME = "resume"
    DELETE = "delete"
    CONVERSE = "converse"
    # About a start task: cancel it, or delete its conversation.
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
    """One line of a history: request number `call` was sent, or got a response.

    Args:
        subject: the id of the sandbox or the start task; None while the client does not know it.
    """

    call: int
    outcome: Outcome
    verb: Verb
    subject: str | None = None


@dataclass(frozen=True)
class Request:
    """A request about a sandbox, with the positions in the history between which it took effect, if it did."""

    desired: Desired
    began: float
    ended: float
    acknowledged: bool


def last_desired_states(history: Iterable[Entry]) -> dict[str, set[Desired]]:
    """The possible final desired states of each acknowledged sandbox.

    The order of two concurrent requests is unknown: either may be the last. A request without a response counts too,
    unless another began after it was over. No request overrides an acknowledged delete.
    """
    return {
        sandbox_id: _possible(requests)
        for sandbox_id, requests in requests_by_sandbox(history).items()
        if any(request.acknowledged for request in requests)
    }


def requests_by_sandbox(history: Iterable[Entry]) -> dict[str, list[Request]]:
    """The requests that may have taken effect, by sandbox."""
    began: dict[int, int] = {}
    found: dict[str, list[Request]] = defaultdict(list)
    pending: dict[int, Entry] = {}
    for place, entry in enumerate(history):
        if entry.verb not in DESIRED_STATES:
            continue
        if entry.outcome == Outcome.INVOKED:
            began[entry.call], pending[entry.call] = place, entry
            continue
        pending.pop(entry.call, None)
        if entry.outcome != Outcome.FAILED and entry.subject:
            request = Request(
                DESIRED_STATES[entry.verb], began.get(entry.call, place), place, entry.outcome == Outcome.OK
            )
            found[entry.subject].append(request)
    for entry in pending.values():
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
