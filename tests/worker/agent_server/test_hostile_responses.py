"""The client raises one of its own errors for each response that no honest server sends."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from shared.agent_server.errors import AgentServerError, AgentServerRefused, WrongServer
from tests.factories import DOOR
from tests.services.hostile_responses import RESPONSES, sending
from tests.services.hostile_server import hostile
from worker.agent_server.client import AgentServer
from worker.agent_server.transport import open_client
from worker.loops.door_check import find_door_problem

CONVERSATION_ID = "1" * 32
REQUESTS: dict[str, Callable[[AgentServer], Any]] = {
    "list": lambda server: server.find_running(),
    "send": lambda server: server.send_message(CONVERSATION_ID, {}),
    "initialize": lambda server: server.initialize("key", {}),
}
MOVED = [name for name in RESPONSES if name.startswith("moved")]


@pytest.mark.parametrize("response", RESPONSES)
def test_malformed_response_raises_an_error_of_the_client(response: str) -> None:
    with hostile(sending(response)) as server, open_client(DOOR) as client:
        requested = AgentServer(server.url, "key", client)
        with pytest.raises(AgentServerError):
            requested.find_running()
        with pytest.raises(AgentServerError):
            requested.get_conversation(CONVERSATION_ID)


@pytest.mark.parametrize("response", RESPONSES)
def test_malformed_response_to_a_probe_has_a_result(response: str) -> None:
    with hostile(sending(response)) as server, open_client(DOOR) as client:
        requested = AgentServer(server.url, "key", client)
        with suppress(WrongServer):
            assert requested.accepts_key() in (True, False)
        assert requested.is_dormant() in (None, False)
        assert requested.is_open() in (None, False, True)
        requested.warm_up()


@pytest.mark.parametrize("response", MOVED)
@pytest.mark.parametrize("request_name", REQUESTS)
def test_redirect_is_a_refusal(response: str, request_name: str) -> None:
    with (
        hostile(sending(response)) as server,
        open_client(DOOR) as client,
        pytest.raises(AgentServerRefused, match=r"30\d"),
    ):
        REQUESTS[request_name](AgentServer(server.url, "key", client))


@pytest.mark.parametrize("response", MOVED)
def test_redirect_is_not_taken_for_one_of_the_door(response: str) -> None:
    with hostile(sending(response)) as server, open_client(DOOR) as client:
        assert "another server" in (find_door_problem(client, server.url) or "")
