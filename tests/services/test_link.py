"""Links: traffic, partitions and their end."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.services.directories import short_directory
from tests.services.link import Link, Network, running_network

SILENCE_SECONDS = 0.2


@pytest.fixture
def directory() -> Iterator[Path]:
    with short_directory("link") as directory:
        yield directory


@pytest.fixture
def server(directory: Path) -> Iterator[Path]:
    """The socket of a server that echoes its input."""
    path = directory / "server.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        threading.Thread(target=_echo_all, args=(listener,), daemon=True).start()
        yield path


@pytest.fixture
def network() -> Iterator[Network]:
    with running_network() as network:
        yield network


@pytest.fixture
def link(network: Network, directory: Path, server: Path) -> Link:
    return Link(network, directory / "link.sock", server)


@pytest.fixture
def client(link: Link) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(link.path))
        client.settimeout(5)
        yield client


def test_link_passes_bytes_both_ways(client: socket.socket) -> None:
    assert _send(client, b"one") == b"one"


def test_partition_holds_bytes_until_it_is_healed(link: Link, client: socket.socket) -> None:
    assert _send(client, b"one") == b"one"
    link.partition()
    client.sendall(b"two")
    client.settimeout(SILENCE_SECONDS)
    with pytest.raises(TimeoutError):
        client.recv(10)
    link.heal(reset=False)
    client.settimeout(5)
    assert client.recv(10) == b"two"


def test_partition_accepts_new_connections_and_passes_nothing(link: Link) -> None:
    link.partition()
    with socket.socket(socket.AF_UNIX) as late:
        late.connect(str(link.path))
        late.settimeout(SILENCE_SECONDS)
        late.sendall(b"one")
        with pytest.raises(TimeoutError):
            late.recv(10)
        link.heal(reset=False)
        late.settimeout(5)
        assert late.recv(10) == b"one"


def test_reset_ends_the_connections_of_a_partition(link: Link, client: socket.socket) -> None:
    assert _send(client, b"one") == b"one"
    link.partition()
    link.heal(reset=True)
    with pytest.raises(ConnectionError):
        assert _send(client, b"two") == b"two"
    with socket.socket(socket.AF_UNIX) as new:
        new.connect(str(link.path))
        new.settimeout(5)
        assert _send(new, b"three") == b"three"


def _send(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    response = client.recv(10)
    if not response:
        raise ConnectionResetError
    return response


def _echo_all(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_echo, args=(connection,), daemon=True).start()


def _echo(connection: socket.socket) -> None:
    with connection, suppress(OSError):
        while data := connection.recv(100):
            connection.sendall(data)
