"""How sandboxes stand towards a request."""

from typing import NamedTuple

import pytest

from shared.sandboxes.availability import Availability, agent_server, availability_of
from shared.states import Desired, Status


class Row(NamedTuple):
    desired: Desired
    status: Status
    generation: int
    observed_generation: int


ANSWERED, UNANSWERED = 1, 2
PAUSES = (Desired.PAUSED, Desired.STOPPED)
EXPECTED = {
    (Desired.RUNNING, Status.STARTING, UNANSWERED): Availability.SETTLES,
    (Desired.RUNNING, Status.STARTING, ANSWERED): Availability.SETTLES,
    (Desired.RUNNING, Status.RUNNING, UNANSWERED): Availability.RUNS,
    (Desired.RUNNING, Status.RUNNING, ANSWERED): Availability.RUNS,
    (Desired.RUNNING, Status.PAUSED, UNANSWERED): Availability.SETTLES,
    # Paused behind our back.
    (Desired.RUNNING, Status.PAUSED, ANSWERED): Availability.SLEEPS,
    (Desired.RUNNING, Status.ERROR, UNANSWERED): Availability.SETTLES,
    (Desired.RUNNING, Status.ERROR, ANSWERED): Availability.FAILED,
    **{(pause, Status.STARTING, UNANSWERED): Availability.SLEEPS for pause in PAUSES},
    **{(pause, Status.STARTING, ANSWERED): Availability.SETTLES for pause in PAUSES},
    **{(pause, Status.RUNNING, UNANSWERED): Availability.SLEEPS for pause in PAUSES},
    # Resumed behind our back.
    **{(pause, Status.RUNNING, ANSWERED): Availability.RUNS for pause in PAUSES},
    **{(pause, Status.PAUSED, UNANSWERED): Availability.SLEEPS for pause in PAUSES},
    **{(pause, Status.PAUSED, ANSWERED): Availability.SLEEPS for pause in PAUSES},
    **{(pause, Status.ERROR, UNANSWERED): Availability.SETTLES for pause in PAUSES},
    **{(pause, Status.ERROR, ANSWERED): Availability.FAILED for pause in PAUSES},
}


@pytest.mark.parametrize("answered", [ANSWERED, UNANSWERED])
@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("desired", Desired)
def test_standing_in_every_state(desired: Desired, status: Status, answered: int) -> None:
    expected = EXPECTED.get((desired, status, answered), Availability.GONE)
    assert availability_of(Row(desired, status, answered, ANSWERED)) == expected


def test_the_agent_server_is_found_by_its_name() -> None:
    urls = [{"name": "VSCODE", "url": "http://a:1"}, {"name": "AGENT_SERVER", "url": "http://a:2/"}]
    assert agent_server(urls) == "http://a:2"
    assert agent_server(urls[:1]) is None
    assert agent_server(None) is None
