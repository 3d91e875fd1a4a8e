"""The worker's check, through the node's door, that the reports of sandboxes would reach the API."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from shared.agent_server.door import API_CHECK, TOKEN_HEADER, open_access
from tests.deploy.door.test_door import VAULT, running
from tests.services.hostile_server import HostileServer, answering, hostile
from tests.services.ports import Port
from worker.agent_server.transport import open_client
from worker.loops.door_check import UNREACHED, find_door_problem


@pytest.fixture
def api() -> Iterator[HostileServer]:
    """A server in place of the API."""
    with hostile(answering({"status": "ok"})) as server:
        yield server


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    """The worker's client."""
    with open_client(open_access(VAULT)) as client:
        yield client


def test_door_that_reaches_the_api_has_no_problem(tmp_path: Path, api: HostileServer, client: httpx.Client) -> None:
    with running(tmp_path, api.url) as door:
        assert find_door_problem(client, door.url) is None
        for path in (API_CHECK, f"{API_CHECK}/", "/health"):
            without_token = httpx.get(f"{door.url}{path}")
            assert without_token.status_code == 403, path
        for path in (f"{API_CHECK}/", f"{API_CHECK}x", "/health"):
            assert client.get(f"{door.url}{path}").status_code == 403, path
    [request] = api.requested
    assert request.startswith(b"GET /alive HTTP/1.1\r\n")
    assert f"host: {httpx.URL(api.url).netloc.decode()}".encode() in request.lower()
    assert TOKEN_HEADER.lower().encode() not in request.lower()
    # An API that stops would wait some seconds for the end of an idle connection.
    assert b"connection: close\r\n" in request.lower()


def test_door_that_does_not_reach_the_api_is_a_problem(tmp_path: Path, client: httpx.Client) -> None:
    with Port() as unused, running(tmp_path, f"http://127.0.0.1:{unused}") as door:
        assert find_door_problem(client, door.url) == f"{UNREACHED} (503)"
