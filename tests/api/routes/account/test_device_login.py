"""/oauth/device: a device polls, its user approves on a page, and the device gets its own key exactly once."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlmodel import select

from shared.clock import now
from shared.db.database import Database
from shared.models import ApiKey, DeviceAuthorization
from shared.models.users import DeviceStatus
from shared.users import device_authorizations
from tests.api.routes.v1.settings.stored import raw_store
from tests.factories import ApiUser

AUTHORIZE, TOKEN, VERIFY = "/oauth/device/authorize", "/oauth/device/token", "/oauth/device/verify"
GRANT = "urn:ietf:params:oauth:grant-type:device_code"


def begin(client: TestClient) -> dict[str, Any]:
    response = client.post(AUTHORIZE, json={})
    assert (response.status_code, response.headers["Cache-Control"]) == (200, "no-store")
    begun: dict[str, Any] = response.json()
    return begun


def poll(client: TestClient, begun: dict[str, Any], **more: str) -> tuple[int, dict[str, Any]]:
    response = client.post(TOKEN, data={"device_code": begun["device_code"]} | more)
    assert response.headers["Cache-Control"] == "no-store"
    return response.status_code, response.json()


def error_of(client: TestClient, begun: dict[str, Any]) -> str:
    status, received = poll(client, begun)
    assert (status, bool(received["error_description"])) == (400, True)
    return str(received["error"])


def decide(client: TestClient, code: str, key: str, decision: str = "approve") -> int:
    form = {"user_code": code, "api_key": key, "decision": decision}
    return int(client.post(VERIFY, data=form).status_code)


def shift(database: Database, **columns: timedelta) -> None:
    """Move these times of every device authorization into the past."""
    with database.transaction() as session:
        for row in session.exec(select(DeviceAuthorization)).all():
            for name, by in columns.items():
                setattr(row, name, getattr(row, name) - by)


def test_device_gets_a_key_once_its_user_approves(client: TestClient, database: Database, user: ApiUser) -> None:
    begun = begin(client)
    uris = {"verification_uri", "verification_uri_complete"}
    assert set(begun) == uris | {"device_code", "user_code", "expires_in", "interval"}
    assert (begun["expires_in"], begun["interval"]) == (600, 5)
    assert begun["verification_uri"] == f"http://testserver{VERIFY}"
    assert begun["verification_uri_complete"] == f"{begun['verification_uri']}?user_code={begun['user_code']}"
    assert error_of(client, begun) == "authorization_pending"
    assert decide(client, begun["user_code"], user.key) == 200
    status, received = poll(client, begun, grant_type=GRANT)
    assert (status, received["token_type"]) == (200, "Bearer")
    headers = {"Authorization": f"Bearer {received['access_token']}"}
    assert client.get("/api/v1/users/me", headers=headers).json()["id"] == user.id
    assert [key["name"] for key in client.get("/api/keys", headers=headers).json()] == ["tests", "device login"]
    held = raw_store(database)
    assert not [one for one in (received["access_token"], begun["device_code"], begun["user_code"]) if one in held]


def test_code_is_used_once(client: TestClient, database: Database, user: ApiUser) -> None:
    begun = begin(client)
    decide(client, begun["user_code"], user.key)
    assert poll(client, begun)[0] == 200
    assert error_of(client, begun) == "invalid_grant"
    assert decide(client, begun["user_code"], user.key) == 404
    with database.reading() as session:
        assert len(session.exec(select(ApiKey)).all()) == 2


def test_code_used_twice_concurrently_is_used_once(client: TestClient, database: Database, user: ApiUser) -> None:
    begun = begin(client)
    decide(client, begun["user_code"], user.key)
    with ThreadPoolExecutor(6) as pool:
        statuses = [future.result()[0] for future in [pool.submit(poll, client, begun) for _ in range(6)]]
    assert sorted(statuses) == [200, 400, 400, 400, 400, 400]
    with database.reading() as session:
        assert len(session.exec(select(ApiKey)).all()) == 2


def test_denied_device_gets_no_key(client: TestClient, user: ApiUser) -> None:
    begun = begin(client)
    assert decide(client, begun["user_code"], user.key, "deny") == 200
    assert [error_of(client, begun) for _ in range(2)] == ["access_denied", "access_denied"]
    assert decide(client, begun["user_code"], user.key) == 404  # the request is already decided


@pytest.mark.parametrize("approved", [False, True])
def test_request_expires(client: TestClient, database: Database, user: ApiUser, *, approved: bool) -> None:
    begun = begin(client)
    if approved:
        decide(client, begun["user_code"], user.key)
    shift(database, expires_at=timedelta(seconds=601))
    assert error_of(client, begun) == "expired_token"
    assert decide(client, begun["user_code"], user.key) == 404


def test_program_that_polls_too_often_gets_slow_down(client: TestClient, database: Database, user: ApiUser) -> None:
    begun = begin(client)
    assert poll(client, begun)[1]["interval"] == 5
    for interval in (10, 15):
        status, received = poll(client, begun)
        assert (status, received["error"], received["interval"]) == (400, "slow_down", interval)
    shift(database, polled_at=timedelta(seconds=14.5))
    status, received = poll(client, begun)
    assert (status, received["error"], received["interval"]) == (400, "authorization_pending", 15)
    for _ in range(20):
        received = poll(client, begun)[1]
    assert received["interval"] == 60
    decide(client, begun["user_code"], user.key)
    assert poll(client, begun)[0] == 200  # an approved device is not slowed down


def test_code_is_accepted_in_any_case_and_spacing(client: TestClient, user: ApiUser) -> None:
    begun = begin(client)
    assert decide(client, f" {begun['user_code'].lower().replace('-', ' ')} ", user.key) == 200
    assert poll(client, begun)[0] == 200


@pytest.mark.parametrize(
    ("form", "error"),
    [
        ({}, "invalid_request"),
        ({"device_code": ""}, "invalid_request"),
        ({"device_code": "unknown"}, "invalid_grant"),
        ({"device_code": "x", "grant_type": "password"}, "unsupported_grant_type"),
    ],
)
def test_malformed_requests_are_refused(client: TestClient, form: dict[str, str], error: str) -> None:
    response = client.post(TOKEN, data=form)
    assert (response.status_code, response.json()["error"]) == (400, error)


@pytest.mark.parametrize(
    "body", [b"", b"\xff\xfe", b"{", b"a&&=%ff", b"x" * 16_000, b"[" * 10_000, b"&".join([b"a=1"] * 50)]
)
@pytest.mark.parametrize("content_type", ["application/json", "application/x-www-form-urlencoded", "text/plain"])
def test_malformed_bodies_are_rejected(client: TestClient, body: bytes, content_type: str) -> None:
    for path, status in ((TOKEN, 400), (VERIFY, 404)):
        response = client.post(path, content=body, headers={"Content-Type": content_type})
        assert response.status_code == status, path


def test_token_request_may_be_json(client: TestClient) -> None:
    begun = begin(client)
    response = client.post(TOKEN, json={"device_code": begun["device_code"]})
    assert response.json()["error"] == "authorization_pending"


@pytest.mark.parametrize("key", ["", "aw_wrong"])
def test_approval_requires_a_user_s_key(client: TestClient, key: str) -> None:
    begun = begin(client)
    assert decide(client, begun["user_code"], key) == 401
    assert error_of(client, begun) == "authorization_pending"


def test_wrong_code_approves_no_device(client: TestClient, user: ApiUser) -> None:
    begun = begin(client)
    for code in ("", "BBBB-BBBB", begun["user_code"][:-1], "<script>"):
        response = client.post(VERIFY, data={"user_code": code, "api_key": user.key, "decision": "approve"})
        assert (response.status_code, user.key in response.text) == (404, False)
    assert client.post(VERIFY, data={"user_code": begun["user_code"], "api_key": user.key}).status_code == 400
    assert error_of(client, begun) == "authorization_pending"


def test_key_of_a_device_expires_with_the_key_that_approved_it(client: TestClient, user: ApiUser) -> None:
    ends = now() + timedelta(hours=1)
    short = client.post("/api/keys", json={"name": "s", "expires_at": ends.isoformat()}, headers=user.headers).json()
    begun = begin(client)
    decide(client, begun["user_code"], short["key"])
    key = poll(client, begun)[1]["access_token"]
    found = client.get("/api/keys", headers={"Authorization": f"Bearer {key}"}).json()
    assert [one["expires_at"] for one in found] == [None, short["expires_at"], short["expires_at"]]


def test_revoked_key_approves_no_device(client: TestClient, user: ApiUser) -> None:
    other = client.post("/api/keys", json={"name": "other"}, headers=user.headers).json()
    begun = begin(client)
    decide(client, begun["user_code"], other["key"])
    client.delete(f"/api/keys/{other['id']}", headers=user.headers)
    assert error_of(client, begun) == "access_denied"


def test_expired_key_approves_no_device(client: TestClient, database: Database, user: ApiUser) -> None:
    begun = begin(client)
    decide(client, begun["user_code"], user.key)
    with database.transaction() as session:
        session.exec(select(ApiKey)).one().expires_at = now()
    assert error_of(client, begun) == "access_denied"


def test_page_shows_the_code_and_runs_no_script(client: TestClient) -> None:
    code = begin(client)["user_code"]
    response = client.get(VERIFY, params={"user_code": code})
    assert (response.status_code, code in response.text) == (200, True)
    assert response.headers["Content-Type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in response.headers["Content-Security-Policy"]
    assert client.get(VERIFY).status_code == 200
    assert client.get(VERIFY, params={"user_code": '"><script>'}).status_code == 422
    typed = client.post(VERIFY, data={"user_code": '"><script>', "api_key": "x", "decision": "approve"})
    assert (typed.status_code, "<script>" in typed.text) == (404, False)


def test_page_shows_the_requesting_program_and_its_address(client: TestClient) -> None:
    headers = {"X-OpenHands-Client": "cli 1.2", "User-Agent": "<b>curl</b>/8\x7f" + "x" * 500}
    code = client.post(AUTHORIZE, headers=headers).json()["user_code"]
    text = client.get(VERIFY, params={"user_code": code}).text
    assert '<dd class="client">cli 1.2</dd>' in text
    assert f'<dd class="agent">&lt;b&gt;curl&lt;/b&gt;/8{"x" * 187}</dd>' in text
    assert '<dd class="address">testclient</dd>' in text
    assert "Deny it if you did not begin this" in text
    named = client.post(AUTHORIZE, data={"client_id": "<i>ide</i>"}).json()["user_code"]
    assert "&lt;i&gt;ide&lt;/i&gt;" in client.get(VERIFY, params={"user_code": named}).text
    # Without a code there is nothing to approve, so the first page only asks for the code.
    assert "Approve</button>" not in client.get(VERIFY).text
    assert client.get(VERIFY, params={"user_code": "BBBB-BBBB"}).status_code == 404


class TestPendingRequests:
    """Callers without a key may send any number of requests, which must not block the login of a user."""

    @pytest.fixture(autouse=True)
    def small_limits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(device_authorizations, "MAX_PENDING", 5)
        monkeypatch.setattr(device_authorizations, "ROOM", 2)

    def test_caller_who_fills_the_list_does_not_block_logins(
        self, client: TestClient, database: Database, user: ApiUser
    ) -> None:
        early = begin(client)
        for expected in ("authorization_pending", *["slow_down"] * 11):
            begin(client)
            shift(database, created_at=timedelta(seconds=1))
            assert error_of(client, early) == expected
        late = begin(client)
        for begun in (early, late):
            assert decide(client, begun["user_code"], user.key) == 200
            assert poll(client, begun)[0] == 200
        assert pending(database) <= 5

    def test_requests_that_are_not_polled_are_dropped_first(self, client: TestClient, database: Database) -> None:
        silent = [begin(client) for _ in range(2)]
        shift(database, created_at=timedelta(seconds=9))
        requested = [begin(client) for _ in range(3)]
        begin(client)
        assert [error_of(client, one) for one in silent] == ["invalid_grant"] * 2
        assert [error_of(client, one) for one in requested] == ["authorization_pending"] * 3

    def test_decided_requests_are_kept(self, client: TestClient, user: ApiUser) -> None:
        approved, denied = begin(client), begin(client)
        decide(client, approved["user_code"], user.key)
        decide(client, denied["user_code"], user.key, "deny")
        for _ in range(12):
            begin(client)
        assert error_of(client, denied) == "access_denied"
        assert poll(client, approved)[0] == 200

    def test_decided_requests_do_not_count_towards_the_limit(self, client: TestClient, user: ApiUser) -> None:
        early = begin(client)
        for _ in range(5):
            decide(client, begin(client)["user_code"], user.key, "deny")
        assert error_of(client, early) == "authorization_pending"

    def test_expired_requests_do_not_count_towards_the_limit(self, client: TestClient, database: Database) -> None:
        for _ in range(5):
            begin(client)
        shift(database, expires_at=timedelta(seconds=601), created_at=timedelta(seconds=601))
        begun = begin(client)
        assert error_of(client, begun) == "authorization_pending"
        assert pending(database) == 4


def pending(database: Database) -> int:
    with database.reading() as session:
        rows = session.exec(select(DeviceAuthorization)).all()
    return len([row for row in rows if row.status == DeviceStatus.PENDING])


def test_expired_authorizations_are_deleted(client: TestClient, database: Database) -> None:
    for _ in range(3):
        begin(client)
    shift(database, expires_at=timedelta(days=2))
    begin(client)
    with database.reading() as session:
        assert len(session.exec(select(DeviceAuthorization)).all()) == 1
