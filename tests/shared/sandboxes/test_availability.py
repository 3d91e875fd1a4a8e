"""Availability of sandboxes for a request, over all states."""

from typing import Any

import pytest

from shared.models import Sandbox
from shared.sandboxes.access import Availability, availability_of
from shared.sandboxes.status import agent_server
from shared.states import Desired, Status

OBSERVED, PENDING = 1, 2
PAUSES = (Desired.PAUSED, Desired.STOPPED)
EXPECTED = {
    (Desired.RUNNING, Status.STARTING, PENDING): Availability.RECONCILING,
    (Desired.RUNNING, Status.STARTING, OBSERVED): Availability.RECONCILING,
    (Desired.RUNNING, Status.RUNNING, PENDING): Availability.RUNNING,
    (Desired.RUNNING, Status.RUNNING, OBSERVED): Availability.RUNNING,
    (Desired.RUNNING, Status.PAUSED, PENDING): Availability.RECONCILING,
    # Drift: the sandbox was paused outside Agent Workspace.
    (Desired.RUNNING, Status.PAUSED, OBSERVED): Availability.PAUSED,
    (Desired.RUNNING, Status.ERROR, PENDING): Availability.RECONCILING,
    (Desired.RUNNING, Status.ERROR, OBSERVED): Availability.FAILED,
    **{(pause, Status.STARTING, PENDING): Availability.PAUSED for pause in PAUSES},
    **{(pause, Status.STARTING, OBSERVED): Availability.RECONCILING for pause in PAUSES},
    **{(pause, Status.RUNNING, PENDING): Availability.PAUSED for pause in PAUSES},
    # Drift: the sandbox was resumed outside Agent Workspace.
    **{(pause, Status.RUNNING, OBSERVED): Availability.RUNNING for pause in PAUSES},
    **{(pause, Status.PAUSED, PENDING): Availability.PAUSED for pause in PAUSES},
    **{(pause, Status.PAUSED, OBSERVED): Availability.PAUSED for pause in PAUSES},
    **{(pause, Status.ERROR, PENDING): Availability.RECONCILING for pause in PAUSES},
    **{(pause, Status.ERROR, OBSERVED): Availability.FAILED for pause in PAUSES},
}


@pytest.mark.parametrize("generation", [OBSERVED, PENDING])
@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("desired", Desired)
def test_every_state_has_its_availability(desired: Desired, status: Status, generation: int) -> None:
    expected = EXPECTED.get((desired, status, generation), Availability.DELETED)
    columns: dict[str, Any] = {"desired": desired, "status": status, "generation": generation}
    assert availability_of(Sandbox(**columns, observed_generation=OBSERVED)) == expected


def test_agent_server_is_found_by_its_name() -> None:
    urls = [{"name": "VSCODE", "url": "http://a:1"}, {"name": "AGENT_SERVER", "url": "http://a:2/"}]
    assert agent_server(urls) == "http://a:2"
    assert agent_server(urls[:1]) is None
    assert agent_server(None) is None
