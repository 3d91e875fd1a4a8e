"""How sandboxes stand towards a request."""

from typing import NamedTuple

import pytest

from shared.states import Desired, Status
from shared.traffic import Standing, agent_server, stand


class Row(NamedTuple):
    desired: Desired
    status: Status
    generation: int
    observed_generation: int


ANSWERED, UNANSWERED = 1, 2
PAUSES = (Desired.PAUSED, Desired.STOPPED)
EXPECTED = {
    (Desired.RUNNING, Status.STARTING, UNANSWERED): Standing.SETTLES,
    (Desired.RUNNING, Status.STARTING, ANSWERED): Standing.SETTLES,
    (Desired.RUNNING, Status.RUNNING, UNANSWERED): Standing.RUNS,
    (Desired.RUNNING, Status.RUNNING, ANSWERED): Standing.RUNS,
    (Desired.RUNNING, Status.PAUSED, UNANSWERED): Standing.SETTLES,
    # Paused behind our back.
    (Desired.RUNNING, Status.PAUSED, ANSWERED): Standing.SLEEPS,
    (Desired.RUNNING, Status.ERROR, UNANSWERED): Standing.SETTLES,
    (Desired.RUNNING, Status.ERROR, ANSWERED): Standing.FAILED,
    **{(pause, Status.STARTING, UNANSWERED): Standing.SLEEPS for pause in PAUSES},
    **{(pause, Status.STARTING, ANSWERED): Standing.SETTLES for pause in PAUSES},
    **{(pause, Status.RUNNING, UNANSWERED): Standing.SLEEPS for pause in PAUSES},
    # Resumed behind our back.
    **{(pause, Status.RUNNING, ANSWERED): Standing.RUNS for pause in PAUSES},
    **{(pause, Status.PAUSED, UNANSWERED): Standing.SLEEPS for pause in PAUSES},
    **{(pause, Status.PAUSED, ANSWERED): Standing.SLEEPS for pause in PAUSES},
    **{(pause, Status.ERROR, UNANSWERED): Standing.SETTLES for pause in PAUSES},
    **{(pause, Status.ERROR, ANSWERED): Standing.FAILED for pause in PAUSES},
}


@pytest.mark.parametrize("answered", [ANSWERED, UNANSWERED])
@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("desired", Desired)
def test_standing_in_every_state(desired: Desired, status: Status, answered: int) -> None:
    expected = EXPECTED.get((desired, status, answered), Standing.GONE)
    assert stand(Row(desired, status, answered, ANSWERED)) == expected


def test_the_agent_server_is_found_by_its_name() -> None:
    urls = [{"name": "VSCODE", "url": "http://a:1"}, {"name": "AGENT_SERVER", "url": "http://a:2/"}]
    assert agent_server(urls) == "http://a:2"
    assert agent_server(urls[:1]) is None
    assert agent_server(None) is None
