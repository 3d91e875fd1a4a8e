"""Requests that can be read in two ways are refused, and responses are forwarded as they arrive."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.engine_filter import proxy
from deploy.engine_filter.bodies import Policy
from deploy.engine_filter.proxy import EngineFilter
from tests.services.engine_socket import EngineSocket, running_engine_filter
from tests.waiting import eventually
from tests.worker.engine.scripted_engine import STREAM, Answer, ScriptedEngine, chunk, running_scripted_engine, whole
from worker.engine.docker_engine import INSTALLATION_LABEL

POLICY = Policy("own")
EVENTS = f'/events?filters={{"label":["{INSTALLATION_LABEL}=own"]}}'


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    with running_scripted_engine() as engine:
        yield engine


@pytest.fixture
def client(engine: ScriptedEngine) -> Iterator[EngineSocket]:
    with running_engine_filter(engine.host, POLICY) as host:
        yield EngineSocket(host)


def send(client: EngineSocket, text: bytes) -> bytes:
    """Send these bytes and read until the end."""
    with client.connect() as connection:
        connection.sendall(text)
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize(
    "text",
    [
        b"GET /version HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /version HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\nhello",
        b"GET /version HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET /version HTTP/1.1\r\nContent-Length: 4194305\r\n\r\n",
        b"GET http://engine/version HTTP/1.1\r\n\r\n",
        b"GET /version?filters HTTP/1.1\r\n\r\n",
        b"GET http://[/version HTTP/1.1\r\n\r\n",
        b"GET /../version HTTP/1.1\r\n\r\n",
        b"GET /%76ersion HTTP/1.1\r\n\r\n",
        b"GET /v1.41/v1.41/version HTTP/1.1\r\n\r\n",
        b"GET /version?unknown=1 HTTP/1.1\r\n\r\n",
        b"GET /events?filters={}&filters={} HTTP/1.1\r\n\r\n",
        b"POST /containers/create?name=aw-a&name=b HTTP/1.1\r\n\r\n",
        b"POST /images/create?fromImage=a&tag=b&fromSrc=- HTTP/1.1\r\n\r\n",
        b"GET /containers/aw-../json HTTP/1.1\r\n\r\n",
        b"GET /containers/aw-a/../b/json HTTP/1.1\r\n\r\n",
        b"CONNECT /version HTTP/1.1\r\n\r\n",
    ],
)
def test_ambiguous_request_is_refused(client: EngineSocket, engine: ScriptedEngine, text: bytes) -> None:
    assert send(client, text).startswith((b"HTTP/1.1 403", b"HTTP/1.1 400"))
    assert not engine.requested
    assert client.send("GET", "/version").status == 200


def test_second_request_of_a_connection_is_not_forwarded(client: EngineSocket, engine: ScriptedEngine) -> None:
    engine.responses["/info"] = whole(b"{}")
    send(client, b"GET /version HTTP/1.1\r\n\r\nGET /info HTTP/1.1\r\n\r\n")
    assert engine.requested == {"/version": 1}


def test_other_header_fields_are_not_forwarded(client: EngineSocket, engine: ScriptedEngine) -> None:
    response = send(client, b"GET /version HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
    assert response == engine.responses["/version"].content


def test_stream_is_forwarded_immediately_and_ends_with_the_client(
    client: EngineSocket, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections: list[socket.socket] = []
    connect_really = proxy.EngineFilter.connect

    def connect(server: proxy.EngineFilter) -> socket.socket:
        connections.append(connect_really(server))
        return connections[-1]

    monkeypatch.setattr(proxy.EngineFilter, "connect", connect)
    event = STREAM + chunk(b'{"status":"start"}\n')
    engine.responses["/events"] = Answer(event, holds=True)
    with client.connect() as connection:
        connection.sendall(f"GET {EVENTS} HTTP/1.1\r\n\r\n".encode())
        received = b""
        while len(received) < len(event):
            received += connection.recv(65536)
        assert received == event
        assert connections[0].fileno() != -1
    eventually(lambda: connections[0].fileno() == -1)


def test_engine_that_is_down_ends_the_connection(engine: ScriptedEngine) -> None:
    """The worker sees a lost connection, not an error of the engine (decision 44)."""
    with running_engine_filter("unix:///nowhere/docker.sock", POLICY) as host:
        assert send(EngineSocket(host), b"GET /version HTTP/1.1\r\n\r\n") == b""
        assert send(EngineSocket(host), b"GET /containers/aw-a/json HTTP/1.1\r\n\r\n") == b""
    assert not engine.requested


def test_socket_is_accessible_to_its_owner_only(engine: ScriptedEngine) -> None:
    with running_engine_filter(engine.host, POLICY) as host:
        path = Path(host.removeprefix("unix://"))
        assert path.stat().st_mode & 0o777 == 0o600


def test_folder_of_the_socket_is_created(tmp_path: Path) -> None:
    """As the documented command needs it after a reboot."""
    path = tmp_path / "run" / "engine.sock"
    with EngineFilter(path, "/nowhere/docker.sock", POLICY) as server:
        assert path.is_socket()
        assert server.fileno() > 0
