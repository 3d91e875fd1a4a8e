"""The tests' browser beside tests that add and remove interfaces."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Semaphore, Thread

import pytest
from playwright.sync_api import Page, expect

# Chromium's max connections to a host. One more request waits for a connection.
CONNECTIONS = 6
PAGE = f"""<title></title><script>
    const all = [...Array({CONNECTIONS + 1}).keys()].map(number => fetch("/" + number));
    Promise.all(all).then(() => document.title = "complete", error => document.title = error);
</script>""".encode()
# The address of a change, for documentation only (RFC 5737).
ADDRESS = "192.0.2.77/32"
# Chromium notices a change in less than a tenth of this, in milliseconds.
NOTICED = 500


class SlowServer(ThreadingHTTPServer):
    """A server of the page whose further requests wait until they are released."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.arrived, self.released = Semaphore(0), Event()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: SlowServer

    def do_GET(self) -> None:
        content = PAGE if self.path == "/" else b""
        if not content:
            self.server.arrived.release()
            self.server.released.wait(60)
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[SlowServer]:
    with SlowServer() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.released.set()
        server.shutdown()
        thread.join()


def test_request_that_waits_for_a_connection_survives_a_new_address(page: Page, server: SlowServer) -> None:
    page.goto(f"http://127.0.0.1:{server.server_port}/")
    for _ in range(CONNECTIONS):
        assert server.arrived.acquire(timeout=60)
    with _new_address():
        page.wait_for_timeout(NOTICED)
        server.released.set()
        expect(page).to_have_title("complete")


@contextmanager
def _new_address() -> Iterator[None]:
    link = f"aw-{os.getpid()}"
    _run_ip("link", "add", link, "type", "veth")
    try:
        _run_ip("address", "add", ADDRESS, "dev", link)
        _run_ip("link", "set", link, "up")
        yield
    finally:
        _run_ip("link", "delete", link)


def _run_ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
