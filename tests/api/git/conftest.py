"""A host that speaks as every provider does, and a service that may ask it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.settings import Settings
from tests.factories import Person
from tests.fakes.git_host import TOKEN, FakeGitHost
from tests.services.asgi import serving

PROVIDERS = ("github", "gitlab", "bitbucket", "bitbucket_data_center", "forgejo", "azure_devops")


@pytest.fixture
def git_host() -> FakeGitHost:
    """What it was asked, and what it is to answer."""
    return FakeGitHost()


@pytest.fixture
def git_url(git_host: FakeGitHost) -> Iterator[str]:
    """Where it is."""
    with serving(git_host, lifespan="off") as url:
        yield url


@pytest.fixture
def settings(settings: Settings, git_url: str) -> Settings:
    """The administrator has listed it."""
    return settings.model_copy(update={"git_hosts": f"other.example.com, {git_url.removeprefix('http://')}"})


@pytest.fixture
def connect(client: TestClient, git_url: str) -> Callable[..., None]:
    """Stores somebody's token for a provider, and its host."""

    def connect(person: Person, provider: str, host: str | None = None, token: str = TOKEN) -> None:
        folder = "/acme" if provider == "azure_devops" else ""
        known = f"anna:{token}" if provider == "bitbucket" else token
        entry = {"token": known, "host": host or f"{git_url}{folder}"}
        body = {"provider_tokens": {provider: entry}}
        assert client.post("/api/v1/secrets/git-providers", json=body, headers=person.headers).status_code == 200

    return connect


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
