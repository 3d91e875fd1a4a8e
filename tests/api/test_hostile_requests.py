"""Hostile cookies and requests: rejected, never a 500, and without effect."""

import asyncio
from time import process_time

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.middleware.request_body import MAX_PARAMETERS
from api.request.context import Context
from api.request.session_cookie import COOKIE
from shared.db.database import Database
from tests.api.asgi_requests import AsgiRequest, body_of
from tests.api.documented import CHANGING, FOR_USERS
from tests.api.operations import all_operations
from tests.api.routes.account.test_login import LIST, ME, sign_in
from tests.factories import ApiUser, make_sandbox
from tests.rows import all_rows

HOSTILE_COOKIES = [
    f"{COOKIE}=" + "a" * 60_000,
    f"{COOKIE}=\x00",
    f"{COOKIE}=a\xff\xfe",
    f"{COOKIE}=%00%ff",
    f'{COOKIE}="quoted; not closed',
    f"{COOKIE}=\xed\xa0\x80",
    f"{COOKIE}",
    f"{COOKIE}; {COOKIE}=;{COOKIE}=a={COOKIE}",
    "=" * 1000,
    ";" * 10_000,
    f"$Version=1; {COOKIE}=a; $Path=/",
]


@pytest.mark.parametrize("cookie", HOSTILE_COOKIES)
def test_hostile_cookie_is_not_authenticated(client: TestClient, cookie: str) -> None:
    headers = [(b"Cookie", cookie.encode("latin-1")), (b"Origin", b"http://testserver")]
    for path in (ME, LIST):
        assert client.get(path, headers=headers).status_code == 401
    for method, path, expected in (
        ("GET", "/login", 200),
        ("POST", "/login", 401),
        ("POST", "/logout", 303),
        ("GET", "/oauth/device/verify", 200),
        ("POST", "/oauth/device/verify", 404),
        ("POST", "/api/authenticate", 401),
        ("GET", f"/sandbox/{'0' * 32}/x", 401),
    ):
        assert client.request(method, path, headers=headers, follow_redirects=False).status_code == expected, path


def test_cookie_of_backslashes_is_parsed_quickly(client: TestClient, user: ApiUser) -> None:
    """The request needs no key, and all others would wait for it."""
    sign_in(client, user.key)
    token, began = client.cookies[COOKIE], process_time()
    for cookie in ('"' + "\\a" * 30_000 + '"', '"' + '\\"' * 30_000 + '"'):
        headers = {"Cookie": f"other={cookie}; {COOKIE}={token}"}
        for path in (ME, "/login"):
            assert client.get(path, headers=headers).status_code == 200
    assert process_time() - began < 2


@pytest.mark.parametrize(("parameters", "status"), [(MAX_PARAMETERS, 200), (MAX_PARAMETERS + 1, 422), (30_000, 422)])
def test_query_with_too_many_parameters_is_refused(client: TestClient, parameters: int, status: int) -> None:
    """No limit applies to requests for health, and all other requests would wait until FastAPI has parsed them."""
    assert client.get(f"/alive?{'&'.join('a' * parameters)}").status_code == status


def test_planted_cookie_is_not_the_login(client: TestClient, user: ApiUser) -> None:
    planted = "a" * 43
    client.cookies.set(COOKIE, planted)
    sign_in(client, user.key)
    tokens = {cookie.value for cookie in client.cookies.jar} - {planted}
    assert len(tokens) == 1
    assert client.get(ME, headers={"Cookie": f"{COOKIE}={planted}"}).status_code == 401


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_form_of_another_site_has_no_effect(
    client: TestClient, database: Database, user: ApiUser, content_type: str
) -> None:
    sandbox = make_sandbox(database, user)
    sign_in(client, user.key)
    changing = [one for one in all_operations(client) if one.method != "GET" and not (one.is_open or one.is_webhook)]
    assert {str(one) for one in changing} == CHANGING & FOR_USERS
    for site in ({"Origin": "https://elsewhere.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}, {}):
        for one in changing:
            response = client.request(
                one.method, one.url(any=sandbox.id), content=b"{}", headers=site | {"Content-Type": content_type}
            )
            assert response.status_code == 403, (one, site)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/admin", 303), ("GET", "/launch", 303), ("POST", "/api/v1/sandboxes", 200)],
)
@pytest.mark.usefixtures("spec")
def test_query_that_is_not_utf_8_is_served(
    context: Context, user: ApiUser, method: str, path: str, status: int
) -> None:
    (context.settings.canvas / "index.html").parent.mkdir(parents=True)
    (context.settings.canvas / "index.html").write_text("<head></head>")
    headers = user.headers if method == "POST" else {"Accept": "text/html"}
    request = AsgiRequest(method, path, headers | {"Idempotency-Key": "one"}, b"x=\xff")
    asyncio.run(request.run(create_app(context), body_of(b"")))
    assert request.status == status


def test_reads_do_not_write(client: TestClient, database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user)
    sign_in(client, user.key)
    reading = [one for one in all_operations(client) if one.method == "GET" and one.path != "/api/v1/changes"]
    client.get(ME)  # records the use of the key
    before = all_rows(database)
    for one in reading:
        client.get(one.url(any=sandbox.id), headers={"Origin": "https://elsewhere.example"}, follow_redirects=False)
    assert all_rows(database) == before
