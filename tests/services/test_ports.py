"""A port has one holder at a time, even while its server is down."""

import socket
from collections.abc import Iterator

import pytest

from tests.services import ports, programs
from tests.services.ports import Port

# So few that two processes would soon choose the same port.
FEW = range(20_000, 20_064)
CHOOSERS, CHOICES = 4, 8
CHOOSER = f"""
import sys
from tests.services import ports
ports.PORTS = {FEW!r}
sys.stdin.readline()
held = [ports.Port() for _ in range({CHOICES})]
print(*(port.number for port in held), flush=True)
sys.stdin.readline()
"""
SERVER = """
import socket, sys, time
listener = socket.socket()
for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
    listener.setsockopt(socket.SOL_SOCKET, option, 1)
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.listen()
print("listening", flush=True)
time.sleep(60)
"""


@pytest.fixture
def port() -> Iterator[Port]:
    port = Port()
    yield port
    port.release()


def test_processes_that_choose_at_once_get_different_ports() -> None:
    with programs.running_together(CHOOSERS, CHOOSER) as choosers:
        for chooser in choosers:
            chooser.write()
        chosen = [int(port) for chooser in choosers for port in chooser.read().split()]
    assert len(chosen) == CHOOSERS * CHOICES
    assert len(set(chosen)) == len(chosen)


def test_port_is_not_given_away_while_its_server_is_killed_and_started(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "PORTS", range(port.number, port.number + 1))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no port"):
            Port()
        with programs.running(SERVER, str(port.number)) as server:
            assert server.read() == "listening"
            socket.create_connection(("127.0.0.1", port.number), timeout=5).close()
            with pytest.raises(RuntimeError, match="no port"):
                Port()
            server.kill()


def test_port_without_a_server_refuses_connections(port: Port) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port.number), timeout=5)


def test_port_with_a_foreign_server_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as server:
        number = server.getsockname()[1]
        monkeypatch.setattr(ports, "PORTS", range(number, number + 1))
        with pytest.raises(RuntimeError, match="no port"):
            Port()


def test_released_port_can_be_chosen_again(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "PORTS", range(port.number, port.number + 1))
    port.release()
    with Port() as again:
        assert again == port.number
