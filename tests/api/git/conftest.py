"""A service that may connect to the git host, and helpers that search there."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.settings import Settings
from tests.factories import ApiUser
from tests.fixtures.git_host import with_git_host
from tests.services.http import NO_CERTIFICATES


@pytest.fixture(autouse=True)
def _no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip reading the system's certificates, 20 ms of each test: the git host speaks no TLS."""
    monkeypatch.setattr("ssl.create_default_context", lambda: NO_CERTIFICATES)


@pytest.fixture
def settings(settings: Settings, git_url: str) -> Settings:
    """Settings that list the git host."""
    return with_git_host(settings, git_url)


@pytest.fixture
def send(client: TestClient) -> Callable[..., Any]:
    """Send a search; return the response."""

    def send(user: ApiUser, what: str, **params: Any) -> Any:
        return client.get(f"/api/v1/git/{what}/search", params=params, headers=user.headers)

    return send


@pytest.fixture
def walk(send: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Read all items of a search, page by page."""

    def walk(user: ApiUser, what: str, **params: Any) -> list[Any]:
        items: list[Any] = []
        page_id: str | None = None
        for _ in range(20):
            response = send(user, what, **params, **({"page_id": page_id} if page_id else {}))
            assert response.status_code == 200, response.text
            assert len(response.json()["items"]) <= int(params["limit"])
            items += response.json()["items"]
            page_id = response.json()["next_page_id"]
            if page_id is None:
                return items
        raise AssertionError("the pages don't end")

    return walk
