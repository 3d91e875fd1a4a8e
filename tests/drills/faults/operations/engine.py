"""Operations on an engine that fails once: the sweep must retry them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tests.drills.faults.operation import ROUTINES, Operation, Prepare
from tests.drills.faults.operations import sandbox
from tests.drills.faults.runner import Runner
from tests.services.faulty_engine import Failure, FailureMode

VERBS = ("start", "pause", "resume", "stop", "delete")
# The prefixes of the API's points.
REQUESTS = ("POST ", "DELETE ")
# Less than the service's timeout, so that the action continues when the response arrives.
LATE_SECONDS = 2.0
# Reads about one sandbox's container. Heartbeats and lists would otherwise use up the one failure.
OF_A_SANDBOX = b"/containers/aw-"
MODES = {
    "that-fails": FailureMode.FAIL,
    "with-a-lost-response": FailureMode.DROP,
    "reported-as-failed": FailureMode.FAIL_AFTER,
    "with-a-truncated-response": FailureMode.CUT,
    "with-a-late-response": FailureMode.DELAY,
    "with-no-response": FailureMode.SWALLOW,
}
# For reads, `FAIL_AFTER` is the same as `FAIL`.
READ_MODES = {name: mode for name, mode in MODES.items() if mode != FailureMode.FAIL_AFTER}
# The tests of a change use all verbs with the quick modes, but one verb with each slow mode. The nightly tests run all.
QUICK = (FailureMode.FAIL, FailureMode.DROP, FailureMode.FAIL_AFTER)
CHANGE = {
    "stop-with-a-truncated-response",
    "resume-with-a-late-response",
    "start-with-no-response",
    "start-after-a-read-with-a-truncated-response",
    "delete-after-a-read-that-fails",
    "pause-after-a-read-with-no-response",
}


def _then(prepare: Prepare, failure: Failure) -> Prepare:
    """Prepare the subject, then make the engine fail."""

    def prepared(runner: Runner) -> str:
        subject = prepare(runner)
        runner.faulty.failure = failure
        return subject

    return prepared


def _has_failed(runner: Runner, _subject: str) -> None:
    """Assert that the failure occurred, unless the API died before it committed the request."""
    assert runner.faulty.failure is None or (runner.died_at or "").startswith(REQUESTS)


def _failures() -> Iterator[tuple[str, Failure]]:
    for name, mode in MODES.items():
        yield name, Failure(mode, reads=False, seconds=LATE_SECONDS, most=1)
    for name, mode in READ_MODES.items():
        yield f"after-a-read-{name}", Failure(mode, writes=False, seconds=LATE_SECONDS, path=OF_A_SANDBOX, most=1)


def _operations() -> Iterator[tuple[str, Operation]]:
    for verb in VERBS:
        for name, failure in _failures():
            whole = sandbox.OPERATIONS[verb]
            prepare, holds = _then(whole.prepare, failure), ROUTINES - {"sweep"}
            yield f"{verb}-{name}", replace(whole, prepare=prepare, verify=_has_failed, holds=holds)


def _is_for_a_change(name: str) -> bool:
    return name in CHANGE or name.partition("-")[2] in {name for name, mode in MODES.items() if mode in QUICK}


ALL: Mapping[str, Operation] = dict(_operations())
OPERATIONS: Mapping[str, Operation] = {name: one for name, one in ALL.items() if _is_for_a_change(name)}
