"""A worker tells the failures of its node's door from those of the agent servers behind it."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import httpx
import pytest

from shared.agent_server.door import ERROR_HEADER
from shared.agent_server.errors import AgentServerUnreachable, DoorUnavailable
from tests.factories import DOOR
from tests.services.hostile_server import HostileServer, Mode, answering, hostile, never_answering
from worker.agent_server import client as agent_server_client
from worker.agent_server import transport
from worker.agent_server.client import AgentServer
from worker.agent_server.transport import open_client
from worker.loops.door_check import find_door_problem

PLACE = "10.0.0.5/8000"
REFUSAL = answering("the door answers 403", 403, X_Agent_Workspace_Door="403")
Request = Callable[[AgentServer], object]
PROBES: list[Request] = [AgentServer.accepts_key, AgentServer.is_ready, AgentServer.is_dormant]


@contextmanager
def responding(status: str, header: str = "X-Other: 1") -> Iterator[str]:
    """URL of a server that sends this response to one request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(f"HTTP/1.1 {status}\r\n{header}\r\nContent-Length: 0\r\n\r\n".encode())

        thread = Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with open_client(DOOR) as client:
        yield client


def test_door_that_is_down_is_no_failure_of_the_server(http: httpx.Client, unused_port: int) -> None:
    server = AgentServer(f"http://127.0.0.1:{unused_port}/{PLACE}", "key", http)
    for send in (server.accepts_key, server.is_ready, server.is_open, server.is_dormant, server.find_running):
        with pytest.raises(DoorUnavailable, match="the node's door does not respond: ConnectError"):
            send()


def test_server_that_is_down_is_unreachable_without_a_door(http: httpx.Client, unused_port: int) -> None:
    server = AgentServer(f"http://127.0.0.1:{unused_port}", "key", http)
    assert server.accepts_key() is False
    assert server.is_dormant() is None


def test_door_that_refuses_is_no_failure_of_the_server(http: httpx.Client) -> None:
    with responding("403 Forbidden", f"{ERROR_HEADER}: 403") as url, pytest.raises(DoorUnavailable, match="secret key"):
        AgentServer(f"{url}/{PLACE}", "key", http).accepts_key()


@pytest.mark.parametrize("status", ["502", "503", "504"])
def test_server_that_the_door_does_not_reach_is_unreachable(http: httpx.Client, status: str) -> None:
    with responding(f"{status} Error", f"{ERROR_HEADER}: {status}") as url:
        assert AgentServer(f"{url}/{PLACE}", "key", http).accepts_key() is False
    with responding(f"{status} Error", f"{ERROR_HEADER}: {status}") as url:
        with pytest.raises(AgentServerUnreachable) as caught:
            AgentServer(f"{url}/{PLACE}", "key", http).find_running()
        assert not isinstance(caught.value, DoorUnavailable)


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short timeouts of probes and of checks of doors."""
    monkeypatch.setattr(agent_server_client, "PROBE_SECONDS", 0.1)
    monkeypatch.setattr(transport, "DOOR_SECONDS", 0.1)


def before(door: HostileServer, server: Mode) -> Mode:
    """The mode of a door in front of an agent server that is in mode `server`."""

    def respond(ended: Event) -> Iterator[bytes]:
        return (REFUSAL if door.requested[-1].startswith(b"GET / ") else server)(ended)

    return respond


@pytest.mark.usefixtures("short_timeouts")
@pytest.mark.parametrize("send", PROBES)
def test_door_that_hangs_leaves_the_server_s_state_unknown(http: httpx.Client, send: Request) -> None:
    with (
        hostile(never_answering) as door,
        pytest.raises(DoorUnavailable, match="the node's door does not respond: ReadTimeout"),
    ):
        send(AgentServer(f"{door.url}/{PLACE}", "key", http))


@pytest.mark.usefixtures("short_timeouts")
def test_server_that_hangs_behind_its_door_is_unreachable(http: httpx.Client) -> None:
    with hostile(REFUSAL) as door:
        door.mode = before(door, never_answering)
        assert AgentServer(f"{door.url}/{PLACE}", "key", http).accepts_key() is False
        assert [one.split()[1] for one in door.requested] == [
            b"/10.0.0.5/8000/api/conversations/count",
            b"/",
        ]


@pytest.mark.parametrize(
    "send",
    [
        *PROBES,
        AgentServer.find_running,
        lambda server: server.delete_conversation("1" * 32),
        lambda server: server.create_conversation({}),
    ],
)
def test_another_server_in_the_door_s_place_leaves_the_server_s_state_unknown(
    http: httpx.Client, send: Request
) -> None:
    with (
        hostile(answering({"detail": "Not Found"}, 404)) as other,
        pytest.raises(DoorUnavailable, match="another server than the node's door"),
    ):
        send(AgentServer(f"{other.url}/{PLACE}", "key", http))


def test_another_server_that_accepts_everything_is_no_agent_server_without_keys(http: httpx.Client) -> None:
    with hostile(answering({})) as other, pytest.raises(DoorUnavailable, match="another server"):
        AgentServer(f"{other.url}/{PLACE}", "key", http).is_ready()


def test_refusal_of_a_server_behind_its_door_counts(http: httpx.Client) -> None:
    with hostile(REFUSAL) as door:
        door.mode = before(door, answering({"detail": "Not Found"}, 404))
        server = AgentServer(f"{door.url}/{PLACE}", "key", http)
        assert [server.delete_conversation("1" * 32) for _ in range(3)] == [False] * 3
        assert len(door.requested) == 4, "the door is asked once a second"


def test_request_without_time_left_is_no_failure_of_the_door(http: httpx.Client) -> None:
    with hostile(REFUSAL) as door, transport.timeout(0), pytest.raises(AgentServerUnreachable) as caught:
        AgentServer(f"{door.url}/{PLACE}", "key", http).find_running()
    assert not isinstance(caught.value, DoorUnavailable)


def test_door_that_refuses_counts_as_responding(http: httpx.Client) -> None:
    with hostile(REFUSAL) as door:
        assert find_door_problem(http, door.url) is None


def test_another_server_is_not_accepted_as_a_door(http: httpx.Client) -> None:
    with responding("200 OK") as url:
        assert find_door_problem(http, url) == f"another server than the node's door responds at its address ({url})"
