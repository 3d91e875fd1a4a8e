"""The files that a request passes through: a reader opens all of them, so their number must not grow unnoticed.

The numbers are for SQLite. docs/develop/architecture.md walks through the files of `POST /api/v1/sandboxes`.
"""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.request.context import Context
from shared.models import Sandbox
from tests.factories import ApiUser
from tests.structure.trace import traced

SANDBOXES, CONVERSATIONS = "/api/v1/sandboxes", "/api/v1/app-conversations"
MAX_FILES = {SANDBOXES: 29, CONVERSATIONS: 33}
MAX_COMMON_FILES = 15

pytestmark = [
    pytest.mark.usefixtures("model_key", "spec", "node"),
    pytest.mark.parametrize("database_url", ["sqlite"], indirect=True),
]


class TracedClient:
    """Sends requests of one user, and returns the files that each passes through until its jobs are published."""

    def __init__(self, client: TestClient, user: ApiUser, passed: dict[str, None]) -> None:
        self._client, self._user, self._passed = client, user, passed

    def request(self, method: str, path: str, body: object = None) -> list[str]:
        self._passed.clear()
        response = self._client.request(method, path, json=body, headers=self._user.headers)
        assert response.status_code == 200, response.text
        return list(self._passed)


@pytest.fixture
def client(api_context: Context, user: ApiUser) -> Iterator[TracedClient]:
    with traced() as passed:
        # Not entered by `with`, so that the application's background tasks don't run.
        yield TracedClient(TestClient(create_app(api_context)), user, passed)


@pytest.mark.parametrize(("path", "body"), [(SANDBOXES, None), (CONVERSATIONS, {})])
def test_start_passes_few_files(client: TracedClient, path: str, body: object) -> None:
    files = client.request("POST", path, body)
    assert {"api/request/authentication.py", "shared/warm_pool/start.py"} <= set(files), "this sees every thread"
    assert len(files) <= MAX_FILES[path], "\n".join(files)


def test_few_files_are_common_to_all_requests(client: TracedClient, sandbox: Sandbox) -> None:
    requests = ("POST", SANDBOXES), ("GET", f"{SANDBOXES}/{sandbox.id}"), ("GET", "/api/keys")
    common = set.intersection(*(set(client.request(*request)) for request in requests))
    assert "api/request/authentication.py" in common
    assert len(common) <= MAX_COMMON_FILES, "\n".join(sorted(common))
