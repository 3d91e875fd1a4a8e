"""A service that may ask the git host, and searches there."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.settings import Settings
from tests.factories import Person
from tests.fixtures.git_host import with_git_host
from tests.services.http import NO_CERTIFICATES


@pytest.fixture(autouse=True)
def _no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The git host speaks no TLS: to read the system's certificates would take 20 ms of each test."""
    monkeypatch.setattr("ssl.create_default_context", lambda: NO_CERTIFICATES)


@pytest.fixture
def settings(settings: Settings, git_url: str) -> Settings:
    """The administrator has listed the git host."""
    return with_git_host(settings, git_url)


@pytest.fixture
def ask(client: TestClient) -> Callable[..., Any]:
    """The answer to a search."""

    def ask(person: Person, what: str, **params: Any) -> Any:
        return client.get(f"/api/v1/git/{what}/search", params=params, headers=person.headers)

    return ask


@pytest.fixture
def walk(ask: Callable[..., Any]) -> Callable[..., list[Any]]:
    """All items of a search, page by page."""

    def walk(person: Person, what: str, **params: Any) -> list[Any]:
        items: list[Any] = []
        page_id: str | None = None
        for _ in range(20):
            answer = ask(person, what, **params, **({"page_id": page_id} if page_id else {}))
            assert answer.status_code == 200, answer.text
            assert len(answer.json()["items"]) <= int(params["limit"])
            items += answer.json()["items"]
            page_id = answer.json()["next_page_id"]
            if page_id is None:
                return items
        raise AssertionError("the pages don't end")

    return walk
