"""A node's door while a sandbox holds as many connections as it gets."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from shared.crypto import new_secret_key
from tests.isolation.network.proxy_scene import NODE, SERVICE, connect_machines, running_door
from tests.services.directories import short_directory
from tests.services.namespaces import Namespace, running_namespace

# So that one sandbox could fill the door: sandboxes may have half of 320 connections.
DESCRIPTORS = 768
# Opens more connections than sandboxes may have, and holds those that it gets.
HOLD = """
import socket, sys
from contextlib import suppress
held = []
for _ in range(200):
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


@pytest.fixture
def machines() -> Iterator[tuple[Namespace, Namespace]]:
    """Two sandboxes of a node with a running door."""
    with ExitStack() as stack:
        directory = stack.enter_context(short_directory("crowd"))
        node, around, named, other = (stack.enter_context(running_namespace()) for _ in range(4))
        connect_machines(node, around, named, other)
        limited = ["prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}"]
        stack.enter_context(running_door(node, directory, new_secret_key(), limited))
        yield named, other


def test_sandbox_that_holds_many_connections_keeps_no_other_out(machines: tuple[Namespace, Namespace]) -> None:
    named, other = machines
    with holding(named):
        assert other.run("python3", "-IS", "-c", ASK, NODE, str(SERVICE)).strip() == "HTTP/1.1 404"


@contextmanager
def holding(place: Namespace) -> Iterator[None]:
    """Hold many connections from a sandbox, for the length of the block."""
    command = [*place.command, "python3", "-IS", "-c", HOLD, NODE, str(SERVICE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "holding\n"
            yield
        finally:
            running.kill()
