"""The client raises one of its own errors for each response that no honest server sends."""

from collections.abc import Callable
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
REFUSED = {*MOVED, *(name for name in RESPONSES if "refusal" in name)}
# A probe reads only the status, which precedes what is malformed in these.
ACCEPTED = {
    "encoding without ASCII",
    "no gzip",
    "no zstd",
    "unknown charset",
    "cut off",
    "negative chunk",
    "long chunk",
    "cut off chunk",
    "many headers",
    "odd cookie",
    "odd old cookie",
    "odd link",
    "not UTF-8",
    "long number",
    "HTTP/9",
}


@pytest.mark.parametrize("response", RESPONSES)
def test_malformed_response_raises_an_error_of_the_client(response: str) -> None:
    with hostile(sending(response)) as server, open_client(DOOR) as client:
        requested = AgentServer(server.url, "key", client)
        with pytest.raises(AgentServerError):
            requested.find_running()
        with pytest.raises(AgentServerError):
            requested.get_conversation(CONVERSATION_ID)


@pytest.mark.parametrize("response", RESPONSES)
def test_probe_has_the_result_of_the_status_or_none(response: str) -> None:
    with hostile(sending(response)) as server, open_client(DOOR) as client:
        requested = AgentServer(server.url, "key", client)
        assert (_accepts_key(requested), requested.is_open()) == _probed(response)
        assert requested.is_dormant() is None
        requested.warm_up()


def _accepts_key(requested: AgentServer) -> bool | None:
    try:
        return requested.accepts_key()
    except WrongServer:
        return None


def _probed(response: str) -> tuple[bool | None, bool | None]:
    """The expected results of `accepts_key`, None for `WrongServer`, and of `is_open`."""
    if response in ACCEPTED:
        return True, True
    return (None, False) if response in REFUSED else (False, None)


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
