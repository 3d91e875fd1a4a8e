"""What is asked for is done by an engine that fails once: the next try, which is the sweep's, has to make up for it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tests.drills.faults.operation import ROUTINES, Operation, Prepare
from tests.drills.faults.operations import sandbox
from tests.drills.faults.runner import Runner
from tests.services.faulty_engine import Trouble, Way

VERBS = ("start", "pause", "resume", "delete")
# The points of the API, as they begin.
REQUESTS = ("POST ", "DELETE ")
TROUBLES = {
    "that-the-engine-refuses": Trouble(Way.FAIL, reads=False, most=1),
    "whose-answer-is-lost": Trouble(Way.DROP, reads=False, most=1),
    "that-is-done-and-called-failed": Trouble(Way.FAIL_AFTER, reads=False, most=1),
}


def _then(prepare: Prepare, trouble: Trouble) -> Prepare:
    """Prepare as ever, and let the engine's trouble begin."""

    def prepared(runner: Runner) -> str:
        subject = prepare(runner)
        runner.faulty.trouble = trouble
        return subject

    return prepared


def _has_failed(runner: Runner, _subject: str) -> None:
    """The engine is not asked at all where the API dies before it commits."""
    assert runner.faulty.trouble is None or (runner.died_at or "").startswith(REQUESTS)


def _operations() -> Iterator[tuple[str, Operation]]:
    for verb in VERBS:
        for name, trouble in TROUBLES.items():
            whole = sandbox.OPERATIONS[verb]
            prepare, holds = _then(whole.prepare, trouble), ROUTINES - {"sweep"}
            yield f"{verb}-{name}", replace(whole, prepare=prepare, verify=_has_failed, holds=holds)


OPERATIONS: Mapping[str, Operation] = dict(_operations())
