"""A node's door while a client holds as many connections as it gets, and the environment of the door's process."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.service.programs import PATH
from shared.crypto import new_secret_key
from tests.isolation.network.proxy_testbed import NODE, SERVICE, connect_machines, running_door
from tests.services.directories import short_directory
from tests.services.forks import Fork
from tests.services.namespaces import Namespace, running_namespace

# Few enough that one sandbox could fill the door: all sandboxes may have half of its 320 connections.
DESCRIPTORS = 768
MORE_THAN_HALF, MORE_THAN_ALL = 200, 400
# Opens connections, and holds those that it gets.
HOLD = """
import socket, sys
from contextlib import suppress
held = []
for _ in range(int(sys.argv[3])):
    with suppress(OSError):
        held.append(socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5))
print("holding", flush=True)
sys.stdin.read()
"""
ASK = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10) as plug:
    plug.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
    print(plug.recv(12).decode())
"""


@dataclass(frozen=True)
class Machines:
    """A node with a running door, and two of its sandboxes."""

    node: Namespace
    named: Namespace
    other: Namespace
    door: Fork


@pytest.fixture
def machines() -> Iterator[Machines]:
    with ExitStack() as stack:
        directory = stack.enter_context(short_directory("crowd"))
        node, around, named, other = (stack.enter_context(running_namespace()) for _ in range(4))
        connect_machines(node, around, named, other)
        door = stack.enter_context(running_door(node, directory, new_secret_key(), (DESCRIPTORS, DESCRIPTORS)))
        yield Machines(node, named, other, door)


def test_haproxy_has_no_settings_in_its_environment(machines: Machines) -> None:
    place = Path(f"/proc/{machines.door.pid}")
    assert "haproxy" in place.joinpath("cmdline").read_text()
    assert place.joinpath("environ").read_text().split("\0") == [f"PATH={PATH}", "LC_ALL=C", ""]


def test_sandbox_that_holds_many_connections_does_not_block_others(machines: Machines) -> None:
    with holding(machines.named, NODE, MORE_THAN_HALF):
        assert response(machines.other) == "HTTP/1.1 404"


def test_connections_of_the_service_do_not_block_sandboxes(machines: Machines) -> None:
    with holding(machines.node, "127.0.0.1", MORE_THAN_ALL):
        assert response(machines.other) == "HTTP/1.1 404"


def response(place: Namespace) -> str:
    """The status of the door's response to a request from a sandbox."""
    return place.run("python3", "-IS", "-c", ASK, NODE, str(SERVICE)).strip()


@contextmanager
def holding(place: Namespace, address: str, count: int) -> Iterator[None]:
    """Hold connections to the door, for the length of the block."""
    command = [*place.command, "python3", "-IS", "-c", HOLD, address, str(SERVICE), str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "holding\n"
            yield
        finally:
            running.kill()
