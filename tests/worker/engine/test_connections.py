"""The connections to an engine that stay open between calls."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingMixIn, UnixStreamServer

from tests.services.directories import short_directory
from tests.waiting import eventually
from worker.engine.docker_client import ClientPool

CONTENT = b'{"ApiVersion": "1.41"}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(CONTENT)


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True


@contextmanager
def running_engine() -> Iterator[tuple[Path, set[int]]]:
    """An engine that closes no connection. Yield its socket, and the ids of its open connections."""
    connected: set[int] = set()

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            connected.add(id(self))
            while self.rfile.readline():
                while self.rfile.readline().strip():
                    pass  # headers
                self.wfile.write(HEAD + CONTENT)
            connected.discard(id(self))

    with short_directory("engine") as directory, _Server(str(directory / "docker.sock"), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield directory / "docker.sock", connected
        finally:
            server.shutdown()
            thread.join()


def test_client_uses_one_connection_for_all_requests() -> None:
    with running_engine() as (path, connected):
        clients = ClientPool(f"unix://{path}", 5)
        for number in range(20):
            with clients.acquire(5) as client:
                client.inspect_container(f"aw-{number}")
        assert eventually(lambda: len(connected) == 1, deadline_seconds=5)
        clients.close()
        assert eventually(lambda: not connected, deadline_seconds=5)
