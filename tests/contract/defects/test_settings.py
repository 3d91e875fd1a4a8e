"""Settings, secrets and tokens."""

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.users import settings_store
from tests.api.routes.v1.settings.stored import raw_store
from tests.factories import VAULT, ApiUser

PATHS = ("/api/v1/settings", "/api/settings")


def _post(client: TestClient, user: ApiUser, body: Any, path: str = PATHS[0]) -> int:
    return int(client.post(path, json=body, headers=user.headers).status_code)


@pytest.mark.parametrize("path", PATHS)
def test_defect_25_setting_of_a_wrong_type_is_rejected_and_breaks_nothing(
    client: TestClient, user: ApiUser, path: str
) -> None:
    assert _post(client, user, {"language": {"a": 1}}, path) == 422
    assert _post(client, user, {"language": "en"}, path) == 200
    for reading in (
        "/api/v1/settings",
        "/api/settings",
        "/api/v1/sandboxes/search",
        "/api/v1/app-conversations/search",
    ):
        assert client.get(reading, headers=user.headers).status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_defect_26_sandbox_key_is_stored_and_survives_later_changes(
    client: TestClient, database: Database, user: ApiUser, path: str
) -> None:
    assert _post(client, user, {"sandbox_api_key": "plain"}, path) == 200
    for later in ({"language": "en"}, {"sandbox_api_key": "**********"}, {"sandbox_api_key": None}):
        assert _post(client, user, later, path) == 200
    with database.reading() as session:
        stored = settings_store.load(session, VAULT, user.id)
    assert stored is not None
    assert stored.sandbox_api_key == "plain"


def test_defect_27_flat_settings_are_stored_and_shown(client: TestClient, user: ApiUser) -> None:
    assert _post(client, user, {"llm_model": "openai/gpt-4o", "llm_api_key": "k", "max_iterations": 9}) == 200
    found = client.get("/api/v1/settings", headers=user.headers).json()
    assert (found["llm_model"], found["llm_api_key_set"], found["max_iterations"]) == ("openai/gpt-4o", True, 9)
    assert found["agent_settings"]["llm"]["model"] == "openai/gpt-4o"
    assert found["conversation_settings"]["max_iterations"] == 9


@pytest.mark.parametrize("path", PATHS)
def test_defect_28_internal_error_does_not_log_users_out(
    client: TestClient, user: ApiUser, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(settings_store, "load", fail)
    assert client.get(path, headers=user.headers).status_code == 500


def test_defect_29_concurrent_changes_are_not_lost(client: TestClient, user: ApiUser) -> None:
    changes: list[Callable[[], int]] = [
        *(lambda name=name: _post(client, user, {name: "x"}) for name in ("language", "agent", "git_user_name")),
        *(
            lambda name=name: _post(client, user, {"agent_settings_diff": {"llm": {name: "x"}}})
            for name in ("model", "api_version", "aws_region_name")
        ),
        lambda: _post(client, user, {"agent_settings_diff": {"llm": {"base_url": "https://x.example.com"}}}),
        *(
            lambda name=name: _post(client, user, {"secrets_store": {"custom_secrets": {name: "x"}}})
            for name in ("A", "B", "C")
        ),
    ]
    with ThreadPoolExecutor(len(changes)) as pool:
        assert {future.result() for future in [pool.submit(change) for change in changes]} == {200}
    found = client.get("/api/v1/settings", headers=user.headers).json()
    assert [found[name] for name in ("language", "agent", "git_user_name", "llm_model")] == ["x"] * 4
    assert found["llm_base_url"] == "https://x.example.com"
    assert found["agent_settings"]["llm"].items() >= {"api_version": "x", "aws_region_name": "x"}.items()
    assert set(found["secrets_store"]["custom_secrets"]) == {"A", "B", "C"}


def test_defect_31_secrets_are_not_stored_in_clear(client: TestClient, database: Database, user: ApiUser) -> None:
    llm = {"api_key": "plain-1", "aws_session_token": "plain-2", "extra_headers": {"X-Key": "plain-3"}}
    servers = {"a": {"url": "https://a.example.com", "auth": "plain-4", "headers": {"X-Key": "plain-5"}}}
    assert _post(client, user, {"search_api_key": "plain-6", "agent_settings_diff": {"llm": llm}}) == 200
    assert _post(client, user, {"agent_settings_diff": {"mcp_config": servers}}) == 200
    stored = {"custom_secrets": {"A": "plain-7"}, "provider_tokens": {"github": "plain-8"}}
    assert _post(client, user, {"secrets_store": stored}) == 200
    assert "plain" not in raw_store(database)


@pytest.mark.parametrize("path", ["/api/v1/secrets/git-providers", "/api/add-git-providers"])
def test_defect_30_tokens_of_other_providers_stay_and_none_is_sent_to_a_host(
    client: TestClient, user: ApiUser, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    contacted = _contacted(monkeypatch)
    hosts = {"github": None, "gitlab": "git.example.com"}
    for provider, host in hosts.items():
        body = {"provider_tokens": {provider: {"token": "plain", "user_id": None, "host": host}}}
        assert client.post(path, json=body, headers=user.headers).status_code == 200
    assert _post(client, user, {}) == 200
    found = client.get(PATHS[0], headers=user.headers).json()
    assert found["provider_tokens_set"] == hosts
    assert contacted == []
    # The control: a search contacts them.
    for provider in hosts:
        client.get("/api/v1/git/repositories/search", params={"provider": provider}, headers=user.headers)
    assert contacted == ["api.github.com", "git.example.com"]


def _contacted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The hosts whose names are looked up or that sockets connect to, from now on; none is reached."""
    contacted: list[Any] = []

    def look_up(host: Any, *_: Any, **__: Any) -> None:
        contacted.append(host)
        raise socket.gaierror("no such name")

    def connect(opened: socket.socket, address: Any) -> None:
        if opened.family != socket.AF_UNIX:  # the broker's: it leads to no host, and its subscriber tries it again
            contacted.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket.socket, "connect", connect, raising=False)
    return contacted
