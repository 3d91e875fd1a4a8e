"""A fault explains a sandbox's state if it follows the request, matches the reason, and could harm the node."""

from typing import Any

import pytest

from shared.clock import now
from shared.models import Sandbox
from shared.states import Reason, Status
from tests.drills.expected_failures import ECHO_SECONDS, InjectedFault, is_expected

REQUESTED_AT = 1000.0


def fault(kind: str = "engine killed", **columns: Any) -> InjectedFault:
    known: dict[str, Any] = {
        "subject": "node-a",
        "node": "node-a",
        "began": REQUESTED_AT,
        "ended": REQUESTED_AT + 1,
        "at": now(),
    }
    return InjectedFault(kind=kind, **(known | columns))


def sandbox(reason: Reason | None = Reason.NODE_LOST) -> Sandbox:
    columns: dict[str, Any] = {"spec_id": "tiny", "desired": "RUNNING", "session_key": "", "session_key_digest": ""}
    return Sandbox(id="s", node_id="node-a", status=Status.ERROR, reason=reason, **columns)


@pytest.mark.parametrize(
    ("row", "injected"),
    [
        (sandbox(), fault()),
        (sandbox(), fault("database restarted", subject="", node=None)),
        (sandbox(), fault(ended=REQUESTED_AT - ECHO_SECONDS + 1)),
        (sandbox(Reason.EXIT_CODE), fault("container killed", subject="s")),
        # The fault was not injected completely, and may have had an effect.
        (sandbox(Reason.EXIT_CODE), fault("container killed", subject="s", effective=False)),
    ],
)
def test_fault_of_the_sandboxs_node_explains_it(row: Sandbox, injected: InjectedFault) -> None:
    assert is_expected(row, REQUESTED_AT, [injected])


@pytest.mark.parametrize(
    ("row", "injected"),
    [
        (sandbox(), fault(subject="node-b", node="node-b")),
        (sandbox(Reason.EXIT_CODE), fault("container killed", subject="s", node="node-b")),
        (sandbox(Reason.EXIT_CODE), fault("container killed", subject="t")),
        (sandbox(), fault("process killed", subject="api-1", node="")),
        (sandbox(), fault(ended=REQUESTED_AT - ECHO_SECONDS - 1)),
        (sandbox(), fault("pull slow", node=None)),
        # The service retries an engine whose responses fail.
        (sandbox(Reason.CREATE_FAILED), fault("writes fail")),
        (sandbox(Reason.ENGINE_ERROR), fault("disk full")),
        (sandbox(None), fault()),
    ],
)
def test_fault_elsewhere_or_of_another_kind_explains_nothing(row: Sandbox, injected: InjectedFault) -> None:
    assert not is_expected(row, REQUESTED_AT, [injected])
