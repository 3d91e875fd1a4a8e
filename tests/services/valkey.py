"""A real broker for tests, which can be stopped, killed and restarted with its data."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from shared.queue.embedded_broker import server_command
from tests.services import processes
from tests.services.directories import short_directory
from tests.waiting import eventually


class Valkey:
    """A server on a unix socket, as `agent-workspace broker` runs it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._socket = directory / "broker.sock"
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The broker's URL for Kombu."""
        return f"redis+socket://{self._socket}"

    @property
    def socket(self) -> Path:
        """The server's socket."""
        return self._socket

    @property
    def pid(self) -> int:
        """The server's pid."""
        return self._server.pid if self._server else 0

    def client(self) -> redis.Redis:
        """Open a connection to read the keys; the caller closes it."""
        return redis.Redis(unix_socket_path=str(self._socket))

    def start(self) -> None:
        """Start the server, unless it runs, and wait until it responds."""
        if self._server is not None and self._server.poll() is None:
            return
        command = server_command(self._socket, self._directory)
        self._server = processes.start(command, self._directory / "log")
        eventually(self._responds)

    def stop(self) -> None:
        """Shut down the server."""
        if self._server is not None:
            processes.stop(self._server)
            self._server = None

    def kill(self) -> None:
        """Kill the server."""
        self._signal(signal.SIGKILL)
        if self._server is not None:
            self._server.wait()
            self._server = None

    def stall(self) -> None:
        """Suspend the server until `wake`; its connections stay open without responses."""
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        """End a stall."""
        self._signal(signal.SIGCONT)

    def flush(self) -> None:
        """Remove every key."""
        with self.client() as client:
            client.flushall()

    def _signal(self, number: signal.Signals) -> None:
        if self._server is not None:
            self._server.send_signal(number)

    def _responds(self) -> bool:
        if self._server is not None and self._server.poll() is not None:
            raise RuntimeError(f"the broker did not start: {(self._directory / 'log').read_text()}")
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False


@contextmanager
def running_valkey() -> Iterator[Valkey]:
    """Run a broker for the length of the block; then remove its files."""
    with short_directory("mq") as directory:
        server = Valkey(directory)
        try:
            server.start()
            yield server
        finally:
            server.wake()
            server.stop()
