"""/api/keys: a user creates, lists and revokes keys."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlmodel import select

from shared.clock import now
from shared.db.database import Database
from shared.models import ApiKey
from tests.api.routes.account.test_login import sign_in
from tests.api.routes.v1.settings.stored import raw_store
from tests.factories import VAULT, ApiUser

PATH = "/api/keys"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def make(client: TestClient, user: ApiUser, name: str = "laptop", **body: Any) -> dict[str, Any]:
    response = client.post(PATH, json={"name": name} | body, headers=user.headers)
    assert (response.status_code, response.headers["Cache-Control"]) == (201, "no-store"), response.text
    made: dict[str, Any] = response.json()
    return made


def listed(client: TestClient, key: str) -> list[dict[str, Any]]:
    response = client.get(PATH, headers=bearer(key))
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()
    return found


def test_key_is_shown_once_and_has_the_access_of_its_owner(
    client: TestClient, database: Database, user: ApiUser
) -> None:
    made = make(client, user)
    assert made["key"].startswith(made["prefix"])
    assert (made["name"], made["expires_at"], made["last_used_at"]) == ("laptop", None, None)
    assert [one["name"] for one in listed(client, made["key"])] == ["tests", "laptop"]
    assert made["key"] not in client.get(PATH, headers=user.headers).text
    assert made["key"] not in raw_store(database)
    assert client.get("/api/v1/users/me", headers=bearer(made["key"])).json()["id"] == user.id


def test_revoked_key_is_rejected(client: TestClient, user: ApiUser) -> None:
    made = make(client, user)
    assert client.delete(f"{PATH}/{made['id']}", headers=user.headers).json() == {"success": True}
    assert client.get(PATH, headers=bearer(made["key"])).status_code == 401
    assert [one["name"] for one in listed(client, user.key)] == ["tests"]
    assert client.delete(f"{PATH}/{made['id']}", headers=user.headers).status_code == 404


def test_current_key_is_described_with_the_fields_that_clients_read(client: TestClient, user: ApiUser) -> None:
    [key] = listed(client, user.key)
    expected = {"org_id": user.id, "user_id": user.id} | {name: key[name] for name in ("id", "name", "prefix")}
    current = client.get(f"{PATH}/current", headers=user.headers).json()
    assert (current["name"], current) == ("tests", expected | {"auth_type": "bearer"})
    sign_in(client, user.key)
    assert client.get(f"{PATH}/current").json() == expected | {"auth_type": "cookie"}


def test_key_can_revoke_itself(client: TestClient, user: ApiUser) -> None:
    current = client.get(f"{PATH}/current", headers=user.headers).json()
    assert client.delete(f"{PATH}/{current['id']}", headers=user.headers).status_code == 200
    assert client.get(PATH, headers=user.headers).status_code == 401


def test_key_expires(client: TestClient, database: Database, user: ApiUser) -> None:
    ends = now() + timedelta(hours=1)
    made = make(client, user, expires_at=ends.isoformat())
    assert datetime.fromisoformat(made["expires_at"]) == ends
    assert listed(client, made["key"])
    with database.transaction() as session:
        row = session.exec(select(ApiKey).where(ApiKey.digest == VAULT.digest(made["key"]))).one()
        row.expires_at = now() - timedelta(seconds=1)
    assert client.get(PATH, headers=bearer(made["key"])).status_code == 401
    assert [one["name"] for one in listed(client, user.key)] == ["tests"]


def test_key_does_not_outlive_the_key_that_created_it(client: TestClient, user: ApiUser) -> None:
    ends = now() + timedelta(hours=1)
    short = make(client, user, expires_at=ends.isoformat())
    holder = ApiUser(user.id, user.name, short["key"])
    assert make(client, holder)["expires_at"] == short["expires_at"]
    assert make(client, holder, expires_at=(ends - timedelta(minutes=1)).isoformat())
    later = {"name": "later", "expires_at": (ends + timedelta(seconds=1)).isoformat()}
    response = client.post(PATH, json=later, headers=holder.headers)
    assert (response.status_code, "outlive" in response.json()["detail"]) == (400, True)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": ""},
        {"name": " x"},
        {"name": "a\nb"},
        {"name": "x" * 101},
        {"name": "x", "expires_at": "2020-01-01T00:00:00Z"},
        {"name": "x", "expires_at": "2999-01-01T00:00:00Z"},
        {"name": "x", "expires_at": "2030-01-01T00:00:00"},
        {"name": "x", "expires_at": "soon"},
    ],
)
def test_invalid_requests_for_keys_are_refused(client: TestClient, user: ApiUser, body: Any) -> None:
    assert client.post(PATH, json=body, headers=user.headers).status_code == 422
    assert len(listed(client, user.key)) == 1


def test_user_has_at_most_a_hundred_keys(client: TestClient, user: ApiUser) -> None:
    keys = [make(client, user, f"k{number}") for number in range(99)]
    response = client.post(PATH, json={"name": "one more"}, headers=user.headers)
    assert (response.status_code, "100" in response.json()["detail"]) == (409, True)
    # A device that is approved gets a key, too. Its user learns from the page that it gets none.
    begun = client.post("/oauth/device/authorize", json={}).json()
    form = {"user_code": begun["user_code"], "api_key": user.key, "decision": "approve"}
    page = client.post("/oauth/device/verify", data=form)
    assert (page.status_code, "at most 100 keys: revoke one first" in page.text) == (409, True)
    client.delete(f"{PATH}/{keys[0]['id']}", headers=user.headers)
    assert client.post("/oauth/device/verify", data=form).status_code == 200
    device = {"device_code": begun["device_code"]}
    assert client.post("/oauth/device/token", data=device).json()["access_token"]


def test_keys_of_other_users_are_a_404(client: TestClient, user: ApiUser, other_user: ApiUser) -> None:
    made = make(client, user)
    assert client.delete(f"{PATH}/{made['id']}", headers=other_user.headers).status_code == 404
    assert [one["name"] for one in listed(client, other_user.key)] == ["tests"]
    assert listed(client, made["key"])
