"""Limits of the kernel that sandboxes share: one sandbox takes all that it can, and the others still work.

Some of these limits are per user, and all sandboxes have the same user; the others are per machine (decision 82).
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.isolation.sandboxes import start_sandbox
from tests.services.engine import docker_engine, name_installation
from tests.waiting import eventually
from worker.engine import kernel_limits

CONFIG = b'{"session_api_keys": ["k"], "secret_key": "s"}'
# Takes one item of a resource with each call until it is refused, or has `most`; prints their number, and holds them.
TAKE = """
import ctypes, fcntl, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
def take_inotify():
    checked(libc.inotify_init())
def take_operations():
    checked(libc.syscall(206, 32768, ctypes.byref(ctypes.c_ulong(0))))
def take_pipe():
    if fcntl.fcntl(os.pipe()[0], 1032) < 65536:
        raise OSError("small")
def resolve_neighbours(addresses=iter(range(4000))):
    address = next(addresses)
    # A socket for each: its packets wait for the neighbour. It reports what the kernel would drop in silence (RECVERR).
    sockets.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    sockets[-1].setsockopt(socket.IPPROTO_IP, 11, 1)
    sockets[-1].sendto(b"?", (f"{network}.{100 + address // 250}.{1 + address % 250}", 9))
own = socket.gethostbyname(socket.gethostname())
network = own.rpartition(".")[0].rpartition(".")[0]
take, most, taken, sockets = globals()[sys.argv[1]], int(sys.argv[2]), 0, []
try:
    while taken < most:
        take()
        taken += 1
except OSError:
    pass
print(taken, flush=True)
sys.stdin.read()
"""
# The maximum that each function takes: more than a kernel's default for all sandboxes together, or all that one process
# may open.
MOST = {
    "take_inotify": 16_000,
    "take_operations": 8,
    "take_pipe": 4_000,
    "resolve_neighbours": 4_000,
}

# These tests run in one test process, which starts the two sandboxes once.
pytestmark = pytest.mark.xdist_group("confined_containers")


@pytest.fixture(scope="module")
def sandboxes() -> Iterator[tuple[str, str]]:
    """Two running sandboxes on a machine whose limits were raised, as the service raises them."""
    kernel_limits.raise_low()
    assert kernel_limits.find_low() == []
    installation = name_installation()
    with docker_engine(installation) as engine:
        first, second = (start_sandbox(engine, installation, CONFIG) for _ in range(2))
        for name in (first, second):
            eventually(lambda name=name: suspend_server(name))  # type: ignore[misc]
        yield first, second


def suspend_server(name: str) -> bool:
    """Suspend a sandbox's agent server, whose boot would take seconds of CPU time; False: there is none yet."""
    command = ["docker", "exec", name, "pkill", "-STOP", "server-python"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@contextmanager
def taking(sandbox: str, what: str, most: int) -> Iterator[int]:
    """Take a resource in a sandbox for the length of the block; yield the number of items that were taken."""
    command = ["docker", "exec", "--interactive", sandbox, "python3", "-c", TAKE, what, str(most)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        yield int(program.stdout.readline())
        program.communicate()


@pytest.mark.parametrize("what", MOST)
def test_sandbox_that_exhausts_a_limit_does_not_affect_others(sandboxes: tuple[str, str], what: str) -> None:
    first, second = sandboxes
    with taking(first, what, MOST[what]) as taken, taking(second, what, 1) as left:
        assert left == 1, f"nothing is left beside {taken}"
        assert taken == MOST[what]
