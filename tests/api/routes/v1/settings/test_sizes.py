"""The settings of a user have a max size, however many requests they come from."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.users import settings_store
from shared.users.mcp_config import MAX_HEADERS
from tests.api.routes.v1.settings.v1 import PATH, agent, load, post, read
from tests.factories import VAULT, ApiUser

MEGABYTE = 1024 * 1024
PROFILES = "/api/v1/settings/profiles"
HEADERS = {f"X-{number}": "value" for number in range(MAX_HEADERS)}


def body(key: str, size: int) -> dict[str, Any]:
    return {"litellm_extra_body": {key: "x" * size}}


def refused(client: TestClient, user: ApiUser, sent: dict[str, Any], path: str = PATH) -> str:
    response = client.post(path, json=sent, headers=user.headers)
    assert response.status_code == 400, response.text
    return str(response.json()["detail"])


@pytest.fixture
def oversized(database: Database, user: ApiUser, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of 3 MB, from before there was a limit."""
    with monkeypatch.context() as patch, database.transaction() as session:
        patch.setattr(settings_store, "MAX_BYTES", 9 * MEGABYTE)
        llm = {"litellm_extra_body": {f"k{number}": "x" * MEGABYTE for number in range(3)}}
        settings_store.change(session, VAULT, user.id, {"agent_settings": {"llm": llm}})


def test_settings_do_not_grow_beyond_the_limit(client: TestClient, database: Database, user: ApiUser) -> None:
    post(client, user, agent(llm=body("a", MEGABYTE // 2)))
    before = load(database, user)
    detail = refused(client, user, agent(llm=body("b", MEGABYTE // 2)) | {"language": "fr"})
    assert str(settings_store.MAX_BYTES) in detail
    assert load(database, user) == before


def test_profiles_count_towards_the_size_limit(client: TestClient, user: ApiUser) -> None:
    llm = {"model": "m"} | body("a", 300_000)
    for name in ("one", "two", "three"):
        assert client.post(f"{PROFILES}/{name}", json={"llm": llm}, headers=user.headers).status_code == 201
    assert "remove" in refused(client, user, {"llm": llm}, f"{PROFILES}/four")
    assert "remove" in refused(client, user, {}, f"{PROFILES}/one/activate")


def test_active_profile_can_be_deleted_although_the_next_one_is_too_large_to_be_active(
    client: TestClient, user: ApiUser
) -> None:
    for name, llm in (("small", {"model": "m"}), ("large", {"model": "m"} | body("a", 600_000))):
        assert client.post(f"{PROFILES}/{name}", json={"llm": llm}, headers=user.headers).status_code == 201
    assert client.post(f"{PROFILES}/small/activate", headers=user.headers).status_code == 200
    assert client.delete(f"{PROFILES}/small", headers=user.headers).status_code == 200
    listed = client.get(PROFILES, headers=user.headers).json()
    assert ([each["name"] for each in listed["profiles"]], listed["active_profile"]) == (["large"], None)


@pytest.mark.usefixtures("oversized")
def test_oversized_settings_can_be_read_and_reduced(client: TestClient, database: Database, user: ApiUser) -> None:
    assert len(read(client, user)["agent_settings"]["llm"]["litellm_extra_body"]) == 3
    refused(client, user, agent(llm=body("more", 10)))
    post(client, user, agent(llm={"litellm_extra_body": {"k0": None}}))
    post(client, user, agent(llm={"litellm_extra_body": {"k1": None, "k2": None, "small": 1}}))
    assert load(database, user).agent_settings == {"llm": {"litellm_extra_body": {"small": 1}}}


def test_headers_of_several_requests_share_a_limit(client: TestClient, database: Database, user: ApiUser) -> None:
    post(client, user, agent(llm={"extra_headers": HEADERS}))
    assert str(MAX_HEADERS) in refused(client, user, agent(llm={"extra_headers": {"X-More": "value"}}))
    post(client, user, agent(llm={"extra_headers": {"X-0": None, "X-More": "value"}}))
    assert len(load(database, user).agent_settings["llm"]["extra_headers"]) == MAX_HEADERS
