"""A door is reached by its name within the timeout of a request, whether or not the resolver responds."""

import socket
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import httpx
import pytest

from shared.agent_server.errors import DoorUnavailable
from tests.factories import DOOR
from tests.services.hostile_server import hostile
from tests.waiting import eventually
from tests.worker.agent_server.test_door_errors import PLACE, REFUSAL
from worker.agent_server.client import AgentServer
from worker.agent_server.transport import open_client, timeout
from worker.loops.door_check import find_door_problem

NAME = "node-a.example"
URL = f"http://{NAME}:3001"
Addresses = Callable[[], list[str]]


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with open_client(DOOR) as client:
        yield client


class Resolver:
    """This process's resolver, which finds the door's addresses with a function."""

    def __init__(self, find: Addresses) -> None:
        self.requested = 0
        self._find = find
        self._real = socket.getaddrinfo

    def look_up(self, host: str, *arguments: Any, **options: Any) -> list[Any]:
        if host != NAME:
            return self._real(host, *arguments, **options)
        self.requested += 1
        return [found for each in self._find() for found in self._real(each, *arguments, **options)]


def resolve(monkeypatch: pytest.MonkeyPatch, find: Addresses) -> Resolver:
    resolver = Resolver(find)
    monkeypatch.setattr(socket, "getaddrinfo", resolver.look_up)
    return resolver


def test_silent_resolver_delays_no_request_beyond_its_timeout(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = Event()

    def hang() -> list[str]:
        released.wait(20)
        raise socket.gaierror("Temporary failure in name resolution")

    resolver = resolve(monkeypatch, hang)
    server = AgentServer(f"{URL}/{PLACE}", "key", http)
    for _ in range(2):
        with timeout(0.2), pytest.raises(DoorUnavailable, match="the node's door does not respond: ConnectTimeout"):
            server.find_running()
    assert resolver.requested == 1, "the requests wait for the same look-up"
    released.set()
    eventually(lambda: "ConnectError" in str(find_door_problem(http, URL)))


def test_unknown_name_is_a_failure_of_the_door(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[str]:
        raise socket.gaierror("Name or service not known")

    resolve(monkeypatch, fail)
    assert find_door_problem(http, URL) == f"the node's door does not respond: ConnectError ({URL})"


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["127.0.0.2", "127.0.0.1"], ["127.0.0.1", "127.0.0.2"]])
def test_door_is_reached_at_any_of_its_addresses(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, addresses: list[str]
) -> None:
    resolve(monkeypatch, lambda: addresses)
    with hostile(REFUSAL) as door:
        assert find_door_problem(http, door.url.replace("127.0.0.1", NAME)) is None


def test_door_that_is_down_at_all_addresses_is_unavailable(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, unused_port: int
) -> None:
    resolve(monkeypatch, lambda: ["127.0.0.2", "127.0.0.1"])
    assert "ConnectError" in str(find_door_problem(http, f"http://{NAME}:{unused_port}"))
