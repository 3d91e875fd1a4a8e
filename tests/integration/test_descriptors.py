"""Idle connections and the max number of open files: an API process answers with any limit."""

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.factories import SECRET_KEY
from tests.services import http
from tests.services.directories import short_directory
from tests.services.forks import Fork
from tests.services.ports import Port
from tests.waiting import eventually

IDLE = 200


@contextmanager
def running(module: str, database_url: str, port: int, limits: tuple[int, int]) -> Iterator[int]:
    """A process that starts with these limits of open files, soft and hard; yield its id."""
    with short_directory("files") as directory:
        environment = {
            "AW_VAR_DIR": str(directory),
            "AW_DATABASE_URL": database_url,
            "AW_SECRET_KEYS": SECRET_KEY,
            "AW_PORT": str(port),
            "AW_CLIENT_PORT": "0",
            "AW_HEAD_SECONDS": "600",
        }
        process = Fork([module], environment, directory / "process.log", files=limits)
        try:
            yield process.pid
        finally:
            process.stop()


def is_alive(port: int) -> bool:
    try:
        return http.get(f"http://127.0.0.1:{port}/alive", timeout=10).status_code == 200
    except httpx.TransportError:
        return False


def is_open(connection: socket.socket) -> bool:
    connection.settimeout(0)
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True


@pytest.mark.parametrize(("limits", "is_enough"), [((128, 4096), True), ((192, 192), False)])
def test_idle_connections_do_not_block_new_clients(database_url: str, limits: tuple[int, int], is_enough: bool) -> None:
    with Port() as port, running("api", database_url, port, limits), ExitStack() as stack:
        eventually(lambda: is_alive(port), deadline_seconds=60)
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30)) for _ in range(IDLE)]
        assert is_alive(port)
        assert [is_open(idle[0]), is_open(idle[-1])] == [is_enough, True]


def test_worker_raises_its_descriptor_limit(tmp_path: Path) -> None:
    with Port() as port, running("worker", f"sqlite:///{tmp_path / 'empty.db'}", port, (128, 4096)) as worker:
        # The worker waits for the tables of its database.
        assert eventually(lambda: resource.prlimit(worker, resource.RLIMIT_NOFILE) == (4096, 4096), deadline_seconds=60)
