"""A node's door: HAProxy between the service and test servers in place of sandboxes, at addresses of this machine."""

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.sync.client import connect

from shared.agent_server.door import PURPOSE, TOKEN_HEADER, DoorAccess, open_access
from shared.agent_server.errors import DoorUnavailable
from shared.crypto import Vault, new_secret_key
from tests.fakes.traffic import TrafficServer
from tests.services import processes
from tests.services.asgi import serving
from tests.services.authority import Authority
from tests.services.door import start_door
from tests.services.hostile_server import HostileServer, answering, hostile
from tests.services.ports import Port
from tests.services.slots import Slot, is_unused, taken_slot
from worker.agent_server.transport import open_client

KEYS = [new_secret_key(), new_secret_key()]
VAULT = Vault(KEYS)
WRONG_TOKENS = {
    "none": "",
    "no token": "wrong",
    "another installation's": Vault([new_secret_key()]).derive(PURPOSE),
    "more than one": f"{VAULT.derive(PURPOSE)},x",
}
LYING = answering({}, 200, X_Agent_Workspace_Door="503")


@dataclass(frozen=True)
class Running:
    """A running door; the addresses of its sandboxes begin with `prefix`."""

    url: str
    port: int
    prefix: str
    process: subprocess.Popen[bytes]

    def at(self, host: str, port: int) -> str:
        """The URL of an address behind the door."""
        return f"{self.url}/{host}/{port}"


@contextmanager
def running(tmp_path: Path, api: str, **settings: str) -> Iterator[Running]:
    """Run a door between the API at `api` and the addresses of a slot, all of which belong to this machine."""
    with taken_slot(lambda one: is_unused(one.network)) as slot, Port() as port, local(slot):
        prefix = prefix_of(slot)
        environment = {
            "AW_SECRET_KEYS": ",".join(KEYS),
            "AW_DOOR_PORT": str(port),
            "AW_NODE_ADDRESS": "127.0.0.1",
            "AW_SANDBOX_ADDRESSES": f"{prefix}.0/24",
            "AW_SANDBOX_API_URL": api,
        }
        process = start_door(environment | settings, tmp_path / "door.log")
        try:
            scheme = "https" if "AW_DOOR_CERTIFICATE" in settings else "http"
            yield Running(f"{scheme}://127.0.0.1:{port}", port, prefix, process)
            assert process.poll() is None, (tmp_path / "door.log").read_text()
        finally:
            processes.stop(process)


@contextmanager
def local(slot: Slot) -> Iterator[None]:
    route = ["local", str(slot.network), "dev", "lo"]
    subprocess.run(["ip", "route", "add", *route], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "route", "delete", *route], check=True)


def prefix_of(slot: Slot) -> str:
    return str(slot.network).rpartition(".")[0]


@pytest.fixture
def api() -> Iterator[HostileServer]:
    """A server in place of the API."""
    with hostile(answering({"from": "api"})) as server:
        yield server


@pytest.fixture
def door(tmp_path: Path, api: HostileServer) -> Iterator[Running]:
    with running(tmp_path, api.url) as door:
        yield door


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    """The workers' client."""
    with open_client(open_access(VAULT)) as client:
        yield client


def test_request_is_forwarded_unchanged_without_the_token(door: Running, client: httpx.Client) -> None:
    with serving(server := TrafficServer(key="k"), host=f"{door.prefix}.5") as url:
        port = urlsplit(url).port or 0
        place = door.at(f"{door.prefix}.5", port)
        response = client.post(f"{place}/a%2Fb//c?d=%20", content=b"body", headers={"X-Session-API-Key": "k"})
    assert response.status_code == 200
    [got] = server.got
    assert (got.method, got.target, got.body_bytes) == ("POST", "/a%2Fb//c?d=%20", 4)
    assert got.header("host") == f"{door.prefix}.5:{port}"
    assert got.header(TOKEN_HEADER.lower()) is None
    assert open_access(VAULT).token not in str(got)


def test_connections_are_kept_for_their_addresses(door: Running, client: httpx.Client) -> None:
    servers = [TrafficServer(key="k") for _ in range(2)]
    hosts = [f"{door.prefix}.{number}" for number in (7, 8)]
    with serving(servers[0], host=hosts[0]) as first, serving(servers[1], host=hosts[1]) as second:
        places = [door.at(host, urlsplit(url).port or 0) for host, url in zip(hosts, (first, second), strict=True)]
        for _ in range(10):
            for place in places:
                assert client.get(f"{place}/x", headers={"X-Session-API-Key": "k"}).status_code == 200
    assert [len(server.got) for server in servers] == [10, 10]
    assert max(len(server.peers) for server in servers) < 10


def test_websocket_is_forwarded(door: Running) -> None:
    with serving(TrafficServer(key="k"), host=f"{door.prefix}.5") as url:
        place = door.at(f"{door.prefix}.5", urlsplit(url).port or 0).replace("http", "ws", 1)
        with connect(f"{place}/sockets/events/1?a=b", additional_headers=open_access(VAULT).headers) as socket:
            socket.send(json.dumps({"type": "auth", "session_api_key": "k"}))
            assert socket.recv() == "/sockets/events/1?a=b"
            socket.send("hello")
            assert socket.recv() == "hello"


@pytest.mark.parametrize("token", WRONG_TOKENS)
def test_token_is_required(door: Running, token: str) -> None:
    with hostile(answering({}), f"{door.prefix}.5") as server:
        place = door.at(f"{door.prefix}.5", server.port)
        assert httpx.get(f"{place}/", headers={TOKEN_HEADER: WRONG_TOKENS[token]}).status_code == 403
        assert httpx.get(f"{place}/", headers=open_access(Vault(KEYS[1:])).headers).status_code == 200
        assert len(server.requested) == 1


@pytest.mark.parametrize(
    ("token", "responses"),
    [pytest.param("wrong", [403], id="wrong"), pytest.param(VAULT.derive(PURPOSE), [200, 200], id="right")],
)
def test_connection_of_a_refused_client_is_closed(door: Running, token: str, responses: list[int]) -> None:
    with hostile(answering({}), f"{door.prefix}.5") as server:
        connection, found = HTTPConnection("127.0.0.1", door.port, timeout=10), []
        with closing(connection), suppress(OSError, HTTPException):
            connection.connect()
            connection.auto_open = 0
            for _ in range(2):
                connection.request("GET", f"/{door.prefix}.5/{server.port}/", headers={TOKEN_HEADER: token})
                response = connection.getresponse()
                found.append(response.status)
                response.read()
    assert found == responses


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"], ids=["nothing", "a head"])
def test_connection_to_an_unresponsive_sandbox_is_closed_when_the_client_leaves(door: Running, sent: bytes) -> None:
    with socket.create_server((f"{door.prefix}.5", 0)) as listener, closing(socket.socket()) as client:
        listener.settimeout(20)
        client.connect(("127.0.0.1", door.port))
        path, token = f"/{door.prefix}.5/{listener.getsockname()[1]}/", VAULT.derive(PURPOSE)
        client.sendall(f"GET {path} HTTP/1.1\r\n{TOKEN_HEADER}: {token}\r\n\r\n".encode())
        with listener.accept()[0] as sandbox:
            sandbox.settimeout(20)
            assert sandbox.recv(65_536)
            sandbox.sendall(sent)
            assert not sent or client.recv(65_536)
            client.close()
            with suppress(ConnectionResetError):
                assert sandbox.recv(65_536) == b""


def test_tcp_finds_out_if_either_side_of_an_idle_connection_is_lost(door: Running) -> None:
    with socket.create_server((f"{door.prefix}.5", 0)) as listener, closing(socket.socket()) as client:
        listener.settimeout(20)
        client.connect(("127.0.0.1", door.port))
        port, token = listener.getsockname()[1], VAULT.derive(PURPOSE)
        client.sendall(f"GET /{door.prefix}.5/{port}/ HTTP/1.1\r\n{TOKEN_HEADER}: {token}\r\n\r\n".encode())
        with listener.accept()[0] as sandbox:
            sandbox.settimeout(20)
            assert sandbox.recv(65_536)
            for own, other in ((door.port, client.getsockname()[1]), (sandbox.getpeername()[1], port)):
                assert "timer:(keepalive," in timers(own, other)


def timers(port: int, of_peer: int) -> str:
    """The kernel's timers of a TCP connection of this machine."""
    command = ["ss", "--tcp", "--numeric", "--options", f"sport = :{port} and dport = :{of_peer}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_only_the_network_s_addresses_are_reached(door: Running, api: HostileServer) -> None:
    headers = open_access(VAULT).headers
    port = api.port
    for path in (
        f"127.0.0.1/{port}/",
        f"{door.prefix}.1/{port}/",
        f"{door.prefix}.0/{port}/",
        f"{door.prefix}.255/{port}/",
        f"0.0.0.0/{port}/",
        f"localhost/{port}/",
        f"{door.prefix}.5/{port}",
        f"{door.prefix}.5/0/",
        f"{door.prefix}.5/http/",
        f"::1/{port}/",
        "",
        "x/../../y/",
    ):
        assert httpx.get(f"{door.url}/{path}", headers=headers).status_code == 403, path
    assert api.requested == []


def test_errors_of_the_door_differ_from_errors_of_servers(door: Running, client: httpx.Client) -> None:
    with pytest.raises(httpx.ConnectError):
        client.get(f"{door.at(f'{door.prefix}.5', 9)}/")
    with pytest.raises(DoorUnavailable, match="secret key"), open_client(DoorAccess("another")) as untrusted:
        untrusted.get(f"{door.at(f'{door.prefix}.5', 9)}/")
    with hostile(LYING, f"{door.prefix}.5") as server:
        assert client.get(f"{door.at(f'{door.prefix}.5', server.port)}/").json() == {}
    with hostile(answering({}, 503), f"{door.prefix}.5") as server:
        assert client.get(f"{door.at(f'{door.prefix}.5', server.port)}/").status_code == 503
    with (
        hostile(lambda _: iter([b"no HTTP at all\r\n\r\n"]), f"{door.prefix}.5") as server,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        client.get(f"{door.at(f'{door.prefix}.5', server.port)}/")


def test_webhooks_and_secrets_are_forwarded_without_cookies(door: Running, api: HostileServer) -> None:
    gateway, sandbox = f"http://{door.prefix}.1:{door.port}", "0" * 32
    passed = [
        "/api/v1/webhooks/conversations",
        f"/api/v1/webhooks/events/{sandbox}",
        f"/api/v1/sandboxes/{sandbox}/settings/secrets",
        f"/api/v1/sandboxes/{sandbox}/settings/secrets/A%20B",
    ]
    for path in passed:
        headers = {"Cookie": "aw_session=stolen", "X-Session-API-Key": "key"}
        assert httpx.post(f"{gateway}{path}", headers=headers).json() == {"from": "api"}
    assert [request.split(b" ")[1].decode() for request in api.requested] == passed
    assert not [
        request for request in api.requested if b"aw_session" in request or b"X-Session-API-Key: key" in request
    ]
    assert all(b"key" in request for request in api.requested)
    assert httpx.get(f"{gateway}/api/v1/users/me").json() == {"from": "api"}, "from this machine itself"


def test_request_of_a_half_closed_client_is_forwarded(door: Running, api: HostileServer) -> None:
    """As by programs in a sandbox that write a request and its end."""
    with closing(socket.create_connection((f"{door.prefix}.1", door.port), timeout=20)) as sandbox:
        sandbox.sendall(b"GET /api/v1/webhooks/conversations HTTP/1.0\r\nHost: api\r\n\r\n")
        sandbox.shutdown(socket.SHUT_WR)
        assert b" 200 " in sandbox.recv(65_536)
    assert len(api.requested) == 1


def test_door_with_a_certificate_serves_tls(tmp_path: Path, api: HostileServer) -> None:
    authority, pair = Authority(tmp_path, "authority"), tmp_path / "pair.pem"
    pair.write_text("".join(file.read_text() for file in authority.issue("127.0.0.1")))
    with (
        running(tmp_path, api.url, AW_DOOR_CERTIFICATE=str(pair)) as door,
        hostile(answering({}), f"{door.prefix}.5") as server,
        open_client(open_access(VAULT, str(authority.file))) as client,
        open_client(open_access(VAULT)) as untrusted,
    ):
        url = f"{door.at(f'{door.prefix}.5', server.port)}/"
        assert client.get(url).status_code == 200
        with pytest.raises(DoorUnavailable):
            untrusted.get(url)
        assert len(server.requested) == 1
