"""Operations on an engine that fails once: the sweep must retry them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tests.drills.faults.operation import ROUTINES, Operation, Prepare
from tests.drills.faults.operations import sandbox
from tests.drills.faults.runner import Runner
from tests.services.faulty_engine import Trouble, Way

VERBS = ("start", "pause", "resume", "stop", "delete")
# The prefixes of the API's points.
REQUESTS = ("POST ", "DELETE ")
# Less than the service's timeout, so that the action continues when the response arrives.
LATE_SECONDS = 2.0
# Reads about one sandbox's container. Heartbeats and lists would otherwise use up the one failure.
OF_A_SANDBOX = b"/containers/aw-"
WAYS = {
    "that-the-engine-refuses": Way.FAIL,
    "whose-answer-is-lost": Way.DROP,
    "that-is-done-and-called-failed": Way.FAIL_AFTER,
    "whose-answer-is-cut": Way.CUT,
    "whose-answer-is-late": Way.DELAY,
    "whose-answer-never-comes": Way.SWALLOW,
}
# For reads, `FAIL_AFTER` is the same as `FAIL`.
READ_WAYS = {name: way for name, way in WAYS.items() if way != Way.FAIL_AFTER}
# Each change is tested with the quick ways, and with one verb for each slow way. The nightly tests run all.
QUICK = (Way.FAIL, Way.DROP, Way.FAIL_AFTER)
CHANGE = {
    "stop-whose-answer-is-cut",
    "resume-whose-answer-is-late",
    "start-whose-answer-never-comes",
    "start-after-a-question-whose-answer-is-cut",
    "delete-after-a-question-that-the-engine-refuses",
    "pause-after-a-question-whose-answer-never-comes",
}


def _then(prepare: Prepare, trouble: Trouble) -> Prepare:
    """Prepare the subject, then make the engine fail."""

    def prepared(runner: Runner) -> str:
        subject = prepare(runner)
        runner.faulty.trouble = trouble
        return subject

    return prepared


def _has_failed(runner: Runner, _subject: str) -> None:
    """Assert that the failure occurred, unless the API died before it committed the request."""
    assert runner.faulty.trouble is None or (runner.died_at or "").startswith(REQUESTS)


def _troubles() -> Iterator[tuple[str, Trouble]]:
    for name, way in WAYS.items():
        yield name, Trouble(way, reads=False, seconds=LATE_SECONDS, most=1)
    for name, way in READ_WAYS.items():
        yield f"after-a-question-{name}", Trouble(way, writes=False, seconds=LATE_SECONDS, path=OF_A_SANDBOX, most=1)


def _operations() -> Iterator[tuple[str, Operation]]:
    for verb in VERBS:
        for name, trouble in _troubles():
            whole = sandbox.OPERATIONS[verb]
            prepare, holds = _then(whole.prepare, trouble), ROUTINES - {"sweep"}
            yield f"{verb}-{name}", replace(whole, prepare=prepare, verify=_has_failed, holds=holds)


def _is_for_a_change(name: str) -> bool:
    return name in CHANGE or name.partition("-")[2] in {name for name, way in WAYS.items() if way in QUICK}


ALL: Mapping[str, Operation] = dict(_operations())
OPERATIONS: Mapping[str, Operation] = {name: one for name, one in ALL.items() if _is_for_a_change(name)}
