"""Access to the operators' pages, and the restrictions on browsers that show them."""

from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from api.web.admin import actions, pages
from api.web.admin.access import AdminRoute, require_form_token
from shared.db.database import Database
from shared.errors import Conflict
from shared.models import Sandbox
from shared.users import roles
from tests.api.web.admin.conftest import ORIGIN, Act, find_token, sign_in
from tests.factories import ApiUser, make_node

ID = "0" * 32
PAGES = ["", "/sandboxes", f"/sandboxes/{ID}", "/nodes", "/users", "/user?name=alice", "/audit", "/changes"]


def test_every_route_requires_an_operator() -> None:
    routes = [*pages.router.routes, *actions.router.routes]
    assert {type(route) for route in routes} == {AdminRoute}
    assert {getattr(require, "dependency", None) for require in actions.router.dependencies} == {require_form_token}


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_for_operators(client: TestClient, user: ApiUser, page: str) -> None:
    client.follow_redirects = False
    response = client.get(f"/admin{page}")
    assert (response.status_code, response.headers["Location"]) == (303, f"/login?returnTo={quote(f'/admin{page}')}")
    assert client.get(f"/admin{page}", headers=user.headers).status_code == 303  # an API key is not a login
    sign_in(client, user)
    response = client.get(f"/admin{page}")
    assert (response.status_code, "alice is not one" in response.text) == (403, True)


@pytest.mark.usefixtures("user")
def test_role_counts_from_the_next_request_on(browser: TestClient, database: Database) -> None:
    assert browser.get("/admin").status_code == 200
    with database.transaction() as session:
        with pytest.raises(Conflict, match="last admin"):
            roles.revoke_admin(session, "olivia")
        assert roles.grant_admin(session, "alice")
        assert not roles.grant_admin(session, "alice")
        assert roles.revoke_admin(session, "olivia")
    assert browser.get("/admin").status_code == 403


def test_actions_are_for_operators(client: TestClient, database: Database, user: ApiUser, sandbox: Sandbox) -> None:
    client.follow_redirects = False
    paths = [f"/admin/sandboxes/{sandbox.id}/delete", f"/admin/nodes/{sandbox.node_id}/cordon"]
    assert [client.post(path, headers=ORIGIN).headers["Location"] for path in paths] == ["/login?returnTo=/admin"] * 2
    sign_in(client, user)
    assert [client.post(path, headers=ORIGIN).status_code for path in paths] == [403, 403]
    assert_unchanged(database, sandbox)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "null"},
        {"Origin": "https://elsewhere.example"},
        {"Origin": "http://testserver", "Sec-Fetch-Site": "same-site"},
    ],
)
def test_forms_of_other_pages_have_no_effect(
    act: Act, database: Database, sandbox: Sandbox, headers: dict[str, str]
) -> None:
    assert act(f"/admin/sandboxes/{sandbox.id}/delete", headers=headers).status_code == 403
    assert_unchanged(database, sandbox)


def test_form_needs_the_token_of_its_login(
    act: Act, browser: TestClient, database: Database, operator: ApiUser, sandbox: Sandbox
) -> None:
    old = find_token(browser)
    sign_in(browser, operator)
    for token in (old, "", "é", "0" * 64):
        assert act(f"/admin/sandboxes/{sandbox.id}/delete", token).status_code == 403
    assert_unchanged(database, sandbox)
    assert act(f"/admin/sandboxes/{sandbox.id}/delete", generation=sandbox.generation).status_code == 303


def assert_unchanged(database: Database, sandbox: Sandbox) -> None:
    with database.reading() as session:
        assert session.get_one(Sandbox, sandbox.id).generation == sandbox.generation


def test_pages_run_their_own_script_only(browser: TestClient, database: Database) -> None:
    make_node(database)
    response = browser.get("/admin/nodes")
    policy = dict(part.strip().split(" ", 1) for part in response.headers["Content-Security-Policy"].split(";"))
    assert policy["script-src"] == policy["style-src"] == "http://testserver/admin/assets/"
    assert (policy["default-src"], policy["frame-ancestors"], policy["base-uri"]) == ("'none'",) * 3
    assert response.headers["Cache-Control"] == "no-store"
    for fragment in ("<script>", " style=", " onclick=", "<style"):
        assert fragment not in response.text
    for asset in ("admin.css", "admin.js"):
        assert browser.get(f"/admin/assets/{asset}").status_code == 200
    assert browser.get("/admin/assets/../pages.py").status_code == 404


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"/admin/sandboxes/{ID}", 404),
        ("/admin/sandboxes/x", 400),
        ("/admin/sandboxes?status=BROKEN", 400),
        ("/admin/sandboxes?page_id=x", 400),
        ("/admin/users?page_id=x", 400),
        ("/admin/user?name=unknown", 404),
    ],
)
def test_bad_input_is_an_error_page(browser: TestClient, path: str, status: int) -> None:
    response = browser.get(path)
    assert (response.status_code, response.headers["Content-Type"]) == (status, "text/html; charset=utf-8")
