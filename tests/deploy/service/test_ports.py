"""The check of the service's ports."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from deploy.service.errors import ServiceError
from deploy.service.ports import refuse_taken_ports
from deploy.service.processes import Process
from shared.settings import Settings


@pytest.fixture
def taken() -> Iterator[int]:
    """A port in use."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def free() -> Iterator[int]:
    """A port that stays free."""
    with free_port() as port:
        yield port


@pytest.fixture
def also_free() -> Iterator[int]:
    """Another port that stays free."""
    with free_port() as port:
        yield port


@contextmanager
def free_port() -> Iterator[int]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_port_in_use_is_named(host: str, taken: int) -> None:
    with pytest.raises(ServiceError, match=f"{taken}.*AW_PORT"):
        refuse_taken_ports(Settings(host=host, port=taken), [Process("web", 1)])


def test_flower_s_port_is_checked_if_flower_is_started(
    taken: int, free: int, also_free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AW_FLOWER_PORT", str(taken))
    with pytest.raises(ServiceError, match=f"{taken}.*AW_FLOWER_PORT.*FLOWER=0"):
        refuse_taken_ports(Settings(port=free, client_port=also_free), [Process("web", 1), Process("flower", 1)])
    refuse_taken_ports(Settings(port=free, client_port=also_free), [Process("web", 1)])
    refuse_taken_ports(Settings(port=taken), [Process("worker", 1)])


def test_free_ports_are_accepted(free: int, also_free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[str, int]] = []

    def connect(address: tuple[str, int], **options: Any) -> socket.socket:
        tried.append(address)
        return connect_really(address, **options)

    connect_really = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setenv("AW_FLOWER_PORT", str(free))
    monkeypatch.setenv("AW_DOOR_PORT", str(free))
    processes = [Process(name, 1) for name in ("web", "door", "flower")]
    refuse_taken_ports(Settings(port=free, client_port=also_free), processes)
    assert tried == [("127.0.0.1", port) for port in (free, also_free, free, free)], "the API's two, then the others'"
