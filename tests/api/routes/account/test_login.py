"""/login: a browser signs in with a key; its cookie gives the same access, for pages of this service only."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlmodel import select

from api.app import create_app
from api.request.context import Context
from api.request.session_cookie import COOKIE
from shared.clock import now
from shared.db.database import Database
from shared.models import ApiKey, Sandbox, WebSession
from shared.users import web_sessions
from tests.api.documented import FOR_USERS, WITH_THE_METRICS_KEY
from tests.api.operations import all_operations
from tests.api.routes.v1.settings.stored import raw_store
from tests.factories import ApiUser, make_sandbox, session_key_of

OURS = {"Origin": "http://testserver"}
ME = "/api/keys/current"
LIST = "/api/v1/sandboxes/search"


def sign_in(client: TestClient, key: str, return_to: str = "/", headers: dict[str, str] | None = None) -> Any:
    form = {"api_key": key, "returnTo": return_to}
    return client.post("/login", data=form, headers=OURS if headers is None else headers, follow_redirects=False)


@pytest.fixture
def browser(client: TestClient, user: ApiUser) -> TestClient:
    """A signed-in browser of the user."""
    assert sign_in(client, user.key).status_code == 303
    client.headers.update(OURS)
    return client


def test_login_with_a_key_sets_a_cookie_with_the_same_access(
    client: TestClient, database: Database, user: ApiUser
) -> None:
    assert client.post("/api/authenticate", headers=OURS).status_code == 401
    response = sign_in(client, user.key, "/conversations/1?a=b#c")
    assert (response.status_code, response.headers["Location"]) == (303, "/conversations/1?a=b#c")
    said = {part.strip().partition("=")[0].lower() for part in response.headers["Set-Cookie"].split(";")}
    assert {"httponly", "samesite", "path", "max-age"} <= said
    assert ("secure" in said, "samesite=lax" in response.headers["Set-Cookie"].lower()) == (False, True)
    token = client.cookies[COOKIE]
    assert (user.key in response.headers["Set-Cookie"], token in raw_store(database)) == (False, False)
    assert client.post("/api/authenticate", headers=OURS).status_code == 200
    assert client.get(ME).json()["user_id"] == user.id
    assert client.get(LIST).status_code == 200


@pytest.mark.parametrize("key", ["", "aw_wrong"])
def test_wrong_key_gets_no_cookie(client: TestClient, key: str) -> None:
    response = sign_in(client, key, "/x")
    assert (response.status_code, 'value="/x"' in response.text) == (401, True)
    assert "Set-Cookie" not in response.headers


def test_token_of_a_cookie_is_not_accepted_as_a_key(browser: TestClient, user: ApiUser) -> None:
    token = browser.cookies[COOKIE]
    browser.cookies.clear()
    for headers in ({"Authorization": f"Bearer {token}"}, {"X-Session-API-Key": token}):
        assert browser.get(ME, headers=headers).status_code == 401
    assert browser.get(ME, headers={"Cookie": f"{COOKIE}={user.key}"}).status_code == 401
    assert browser.get(ME, headers={"Cookie": f"{COOKIE}="}).status_code == 401


def test_key_takes_precedence_over_a_cookie(browser: TestClient, other_user: ApiUser) -> None:
    assert browser.get(ME, headers=other_user.headers).json()["user_id"] == other_user.id
    assert browser.get(ME, headers={"Authorization": "Bearer aw_wrong"}).status_code == 401


def test_cookie_is_accepted_by_every_operation(browser: TestClient, database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user)
    closed = [one for one in all_operations(browser) if not (one.is_open or one.is_webhook or one.path == "/metrics")]
    assert {str(one) for one in closed} == FOR_USERS - WITH_THE_METRICS_KEY
    for operation in closed:
        if operation.path == "/api/v1/changes":  # its stream does not end
            continue
        response = browser.request(
            operation.method, operation.url(any=sandbox.id), json={} if operation.has_body else None
        )
        # A provider that rejects the user's token is the only other reason for a 403.
        rejected = (401,) if "/git" in operation.path else (401, 403)
        assert response.status_code not in rejected, operation


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://elsewhere.example"},
        {"Origin": "null"},
        {"Origin": "http://testserver:8080"},
        {"Origin": "http://testserver.elsewhere.example"},
        {"Origin": ""},
        {"Origin": "http://testserver", "Sec-Fetch-Site": "same-site"},
        {"Origin": "http://testserver", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://testserver", "Sec-Fetch-Site": "none"},
    ],
)
def test_cookie_does_not_authorize_changes_by_pages_of_other_sites(
    browser: TestClient, database: Database, sandbox: Sandbox, headers: dict[str, str]
) -> None:
    for method, path in (
        ("POST", f"/api/v1/sandboxes/{sandbox.id}/pause"),
        ("DELETE", f"/api/v1/sandboxes/{sandbox.id}"),
    ):
        assert browser.request(method, path, headers=headers).status_code == 403
    assert browser.post("/logout", headers=headers).status_code == 403
    assert sign_in(browser, "aw_any", headers=headers).status_code == 403
    with database.reading() as session:
        row = session.get_one(Sandbox, sandbox.id)
        assert (row.desired, row.generation) == (sandbox.desired, sandbox.generation)
    assert browser.get(ME, headers=headers).status_code == 200  # scripts cannot read the cookie


def test_cookie_does_not_authorize_changes_without_an_origin(browser: TestClient, sandbox: Sandbox) -> None:
    del browser.headers["Origin"]
    assert browser.delete(f"/api/v1/sandboxes/{sandbox.id}").status_code == 403
    own = {"Sec-Fetch-Site": "same-origin"}
    assert browser.delete(f"/api/v1/sandboxes/{sandbox.id}", headers=own).status_code == 200


def test_pages_of_listed_origins_may_use_the_cookie(context: Context, user: ApiUser) -> None:
    page = "https://page.example"
    settings = context.settings.model_copy(update={"cors_origins": page})
    with TestClient(create_app(replace(context, settings=settings))) as client:
        assert sign_in(client, user.key).status_code == 303
        for origin, status in ((page, 200), ("https://elsewhere.example", 403)):
            headers = {"Origin": origin, "Sec-Fetch-Site": "same-site"}
            assert client.post("/api/authenticate", headers=headers).status_code == status


@pytest.mark.parametrize(
    ("requested", "gone"),
    [
        ("/conversations?a=b#c", "/conversations?a=b#c"),
        ("https://elsewhere.example", "/"),
        ("//elsewhere.example", "/"),
        ("/\\elsewhere.example", "/"),
        ("/\t/elsewhere.example", "/"),
        ("javascript:alert(1)", "/"),
        ("/a\r\nSet-Cookie: a=b", "/"),
        ("", "/"),
        ("/" + "a" * 5000, "/"),
    ],
)
def test_login_redirects_to_own_paths_only(client: TestClient, user: ApiUser, requested: str, gone: str) -> None:
    assert sign_in(client, user.key, requested).headers["Location"] == gone
    response = client.get("/login", params={"returnTo": requested}, follow_redirects=False)
    assert (response.status_code, response.headers["Location"]) == (303, gone)  # signed in already


def test_page_runs_no_script_and_echoes_no_input(client: TestClient) -> None:
    response = client.get("/login", params={"returnTo": '/"><script>'})
    assert (response.status_code, "<script>" in response.text) == (200, False)
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    assert (response.headers["Referrer-Policy"], response.headers["Cache-Control"]) == ("same-origin", "no-store")


def test_signing_out_ends_the_login(browser: TestClient, user: ApiUser) -> None:
    assert user.name in browser.get("/login").text
    token = browser.cookies[COOKIE]
    response = browser.post("/logout", follow_redirects=False)
    assert (response.status_code, response.headers["Location"]) == (303, "/login")
    assert COOKIE not in browser.cookies
    assert browser.get(ME, headers={"Cookie": f"{COOKIE}={token}"}).status_code == 401
    assert browser.post("/logout", follow_redirects=False).status_code == 303


def test_login_ends_with_its_key(browser: TestClient) -> None:
    key_id = browser.get(ME).json()["id"]
    assert browser.delete(f"/api/keys/{key_id}").status_code == 200
    for path in (ME, LIST):
        assert browser.get(path).status_code == 401


def test_login_expires_no_later_than_its_key(client: TestClient, database: Database, user: ApiUser) -> None:
    ends = now() + timedelta(hours=1)
    short = client.post("/api/keys", json={"name": "s", "expires_at": ends.isoformat()}, headers=user.headers).json()
    sign_in(client, short["key"])
    with database.transaction() as session:
        [row] = session.exec(select(WebSession)).all()
        assert row.expires_at == session.get_one(ApiKey, short["id"]).expires_at
    assert client.get(ME).status_code == 200
    with database.transaction() as session:
        [row] = session.exec(select(WebSession)).all()
        row.expires_at = now() - timedelta(seconds=1)
        session.add(row)
    assert client.get(ME).status_code == 401


def test_login_ends_before_a_key_that_lives_longer(client: TestClient, database: Database, user: ApiUser) -> None:
    ends = (now() + timedelta(days=60)).isoformat()
    long = client.post("/api/keys", json={"name": "l", "expires_at": ends}, headers=user.headers).json()
    said = sign_in(client, long["key"]).headers["Set-Cookie"].lower()
    assert 0 <= web_sessions.LIFE_SECONDS - int(said.partition("max-age=")[2].partition(";")[0]) <= 60
    with database.reading() as session:
        [row] = session.exec(select(WebSession)).all()
    assert row.expires_at <= now() + timedelta(seconds=web_sessions.LIFE_SECONDS)


def test_signing_in_again_replaces_the_login(browser: TestClient, database: Database, user: ApiUser) -> None:
    old = browser.cookies[COOKIE]
    sign_in(browser, user.key)
    assert browser.cookies[COOKIE] != old
    assert browser.get(ME, headers={"Cookie": f"{COOKIE}={old}"}).status_code == 401
    with database.reading() as session:
        assert len(session.exec(select(WebSession)).all()) == 1


def test_key_has_a_limited_number_of_logins_and_expired_ones_are_deleted(
    client: TestClient, database: Database, user: ApiUser, other_user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_sessions, "MAX_SESSIONS", 2)
    tokens = []
    for key in (other_user.key, user.key, user.key, user.key):
        client.cookies.clear()
        sign_in(client, key)
        tokens.append(client.cookies[COOKIE])
    client.cookies.clear()
    statuses = [client.get(ME, headers={"Cookie": f"{COOKIE}={token}"}).status_code for token in tokens]
    assert statuses == [200, 401, 200, 200]
    with database.transaction() as session:
        for row in session.exec(select(WebSession)).all():
            row.expires_at = now() - timedelta(days=2)
            session.add(row)
    sign_in(client, other_user.key)
    with database.reading() as session:
        assert len(session.exec(select(WebSession)).all()) == 1


def test_use_of_the_cookie_is_use_of_its_key(browser: TestClient, database: Database) -> None:
    browser.get(ME)
    with database.reading() as session:
        assert session.exec(select(ApiKey)).one().last_used_at is not None


def test_cookie_set_over_https_is_secure(client: TestClient, user: ApiUser) -> None:
    response = sign_in(client, user.key, headers={"Origin": "https://testserver"})  # a proxy has ended TLS
    assert "secure" in response.headers["Set-Cookie"].lower()
    client.cookies.clear()
    client.base_url = client.base_url.copy_with(scheme="https")
    response = sign_in(client, user.key, headers={"Sec-Fetch-Site": "same-origin"})
    assert "secure" in response.headers["Set-Cookie"].lower()


class TestDevices:
    """The page that approves devices also accepts the login."""

    def test_signed_in_browser_needs_no_key(self, browser: TestClient, user: ApiUser) -> None:
        begun = browser.post("/oauth/device/authorize", json={}).json()
        page = browser.get("/oauth/device/verify", params={"user_code": begun["user_code"]}).text
        assert (user.name in page, "api_key" in page) == (True, False)
        form = {"user_code": begun["user_code"], "decision": "approve"}
        strange = {"Origin": "https://elsewhere.example"}
        assert browser.post("/oauth/device/verify", data=form, headers=strange).status_code == 403
        assert browser.post("/oauth/device/verify", data=form).status_code == 200
        token = browser.post("/oauth/device/token", data={"device_code": begun["device_code"]}).json()
        headers = {"Authorization": f"Bearer {token['access_token']}"}
        assert browser.get(ME, headers=headers).json()["user_id"] == user.id

    def test_typed_key_takes_precedence_over_the_login(self, browser: TestClient, other_user: ApiUser) -> None:
        begun = browser.post("/oauth/device/authorize", json={}).json()
        form = {"user_code": begun["user_code"], "decision": "approve", "api_key": other_user.key}
        assert browser.post("/oauth/device/verify", data=form).status_code == 200
        token = browser.post("/oauth/device/token", data={"device_code": begun["device_code"]}).json()
        headers = {"Authorization": f"Bearer {token['access_token']}"}
        assert browser.get(ME, headers=headers).json()["user_id"] == other_user.id

    def test_page_says_that_the_device_s_key_outlives_a_revocation(self, browser: TestClient) -> None:
        begun = browser.post("/oauth/device/authorize", json={}).json()
        page = browser.get("/oauth/device/verify", params={"user_code": begun["user_code"]}).text
        form = {"user_code": begun["user_code"], "decision": "approve"}
        assert browser.post("/oauth/device/verify", data=form).status_code == 200
        token = browser.post("/oauth/device/token", data={"device_code": begun["device_code"]}).json()
        assert browser.delete(f"/api/keys/{browser.get(ME).json()['id']}").status_code == 200
        assert browser.get(ME, headers={"Authorization": f"Bearer {token['access_token']}"}).status_code == 200
        assert "stays valid if that one is revoked" in page


def test_agent_servers_do_not_accept_the_cookie(browser: TestClient, sandbox: Sandbox) -> None:
    assert browser.post("/api/v1/webhooks/conversations", json={}).status_code == 401
    assert browser.get(f"/sandbox/{sandbox.id}/api/conversations/count").status_code == 401
    assert session_key_of(sandbox) not in browser.get("/login").text
