"""The web UI: if it is unpacked, it serves all paths without an operation, for signed-in users."""

import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api.app import create_app
from api.request.context import Context
from shared.settings import Settings
from tests.factories import ApiUser

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient

ORIGIN = "http://testserver"
INDEX = """<!DOCTYPE html><html><head><link rel="modulepreload" href="/assets/a-1.js"/></head><body>
<script>first()</script><script type="module" async="">import "/assets/a-1.js";</script></body></html>"""


@pytest.fixture(autouse=True)
def page(settings: Settings) -> Path:
    """The directory of the unpacked web UI, with substitutes for its files."""
    for name, content in {
        "index.html": INDEX,
        "assets/a-1.js": "export default 1",
        "monaco/vs/loader.js": "define()",
        "favicon.ico": "icon",
    }.items():
        file = settings.canvas / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return settings.canvas


@pytest.fixture
def browser(client: TestClient, user: ApiUser) -> TestClient:
    client.headers["Origin"] = ORIGIN
    client.follow_redirects = False
    assert client.post("/login", data={"api_key": user.key}).status_code == 303
    return client


@pytest.mark.parametrize(
    "path",
    ["/", "/conversations/1", "/settings/llm?a=b", "/launch", "/index.html", "/index.html/", "/assets/..%2findex.html"],
)
def test_signed_in_browser_gets_the_page(browser: TestClient, path: str) -> None:
    response = browser.get(path)
    assert (response.status_code, response.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert response.headers["Cache-Control"] == "no-store"
    assert "frame-ancestors 'none'" in response.headers["Content-Security-Policy"]
    assert f"window.__AGENT_CANVAS_LOCK_TO_CLOUD__={json.dumps(ORIGIN)};" in response.text
    assert "window.__AGENT_CANVAS_DO_NOT_TRACK__=true;" in response.text
    assert browser.head(path).status_code == 200


def test_content_security_policy_allows_the_page_s_scripts_only(browser: TestClient) -> None:
    policies, nonces = set(), set()
    for _ in range(2):
        response = browser.get("/")
        [nonce] = set(re.findall(r'<script nonce="([\w-]{16,})"', response.text))
        assert response.text.count(f'<script nonce="{nonce}"') == response.text.count("<script") == 3
        policy = dict(part.split(" ", 1) for part in response.headers["Content-Security-Policy"].split("; "))
        assert policy["script-src"] == f"{ORIGIN}/assets/ {ORIGIN}/monaco/ 'nonce-{nonce}'"
        nonces.add(nonce)
        policies.add(policy["connect-src"])
    assert len(nonces) == 2
    assert policies == {"'self' ws://testserver"}
    assert (policy["default-src"], policy["frame-ancestors"], policy["object-src"]) == ("'self'", "'none'", "'none'")


@pytest.mark.parametrize(
    ("path", "login"),
    [
        ("/", "/login?returnTo=/"),
        ("/conversations/1?a=b&c=d", "/login?returnTo=/conversations/1%3Fa%3Db%26c%3Dd"),
        ("//elsewhere/x", "/login?returnTo=//elsewhere/x"),
        ("//index.html", "/login?returnTo=//index.html"),
    ],
)
def test_signed_out_browser_is_led_to_the_login_and_back(
    client: TestClient, user: ApiUser, path: str, login: str
) -> None:
    response = client.get(f"{ORIGIN}{path}", follow_redirects=False)
    assert (response.status_code, response.headers["Location"]) == (303, login)
    form = {"api_key": user.key, "returnTo": path}
    response = client.post("/login", data=form, headers={"Origin": ORIGIN}, follow_redirects=False)
    assert response.headers["Location"] == ("/" if path.startswith("//") else path)


def test_files_of_the_page_need_no_login(client: TestClient) -> None:
    for path, content, kept in (
        ("/assets/a-1.js", "export default 1", "public, max-age=600"),
        ("/monaco/vs/loader.js", "define()", "no-cache"),
        ("/favicon.ico", "icon", "no-cache"),
    ):
        response = client.get(path)
        assert (response.status_code, response.text, response.headers["Cache-Control"]) == (200, content, kept)
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        again = client.get(path, headers={"If-None-Match": response.headers["ETag"]})
        assert (again.status_code, again.text) == (304, "")
    assert client.get("/assets/a-1.js").headers["Content-Type"].startswith("text/javascript")


def test_browsers_get_a_file_that_an_update_has_patched(client: TestClient, page: Path) -> None:
    response = client.get("/assets/a-1.js")
    kept = dict(part.strip().partition("=")[::2] for part in response.headers["Cache-Control"].split(","))
    assert ("immutable" in kept, int(kept["max-age"]) <= 600) == (False, True)
    (page / "assets" / "a-1.js").write_text("export default 22")
    again = client.get("/assets/a-1.js", headers={"If-None-Match": response.headers["ETag"]})
    assert (again.status_code, again.text) == (200, "export default 22")


@pytest.mark.parametrize(
    "path",
    ["/assets/a-2.js", "/assets/..%2f..%2fadmin.key", "/..%2fsecret.key", "/assets/%2e%2e/%2e%2e/admin.key", "/a.b"],
)
def test_files_beside_the_page_are_a_404(browser: TestClient, settings: Settings, path: str) -> None:
    for name in ("admin.key", "secret.key"):
        (settings.var_dir / name).write_text("secret")
    response = browser.get(path)
    assert (response.status_code, response.json()["detail"]) == (404, "Not Found")


def test_operations_are_not_replaced_by_the_page(browser: TestClient) -> None:
    for method, path, status in (
        ("GET", "/api/nothing", 404),
        ("GET", "/api/v1/nothing/at/all", 404),
        ("GET", "/oauth/nothing", 404),
        ("POST", "/conversations", 404),
        ("DELETE", "/", 404),
        ("POST", "/api/keys/current", 405),
        ("GET", "/alive", 200),
        ("GET", "/docs", 200),
        ("GET", "/sandbox/1/x", 401),
    ):
        response: Any = browser.request(method, path)
        assert response.status_code == status, path
        assert "__AGENT_CANVAS" not in response.text


@pytest.mark.parametrize(
    "path",
    ["//api/v1/sandboxes/search", "///api/v1/x", "/API/v1/sandboxes/search", "/api", "//oauth/x", "/Sandbox/1/x"],
)
@pytest.mark.parametrize("accept", ["application/json", "*/*", "text/html"])
def test_unknown_path_of_the_api_is_a_404(client: TestClient, user: ApiUser, path: str, accept: str) -> None:
    for headers in ({}, user.headers):
        response = client.get(f"{ORIGIN}{path}", headers=headers | {"Accept": accept}, follow_redirects=False)
        assert (response.status_code, response.json()["detail"]) == (404, "Not Found")


def test_program_that_requests_a_path_of_the_page_gets_a_404(client: TestClient, user: ApiUser) -> None:
    for headers in ({"Accept": "application/json"}, user.headers, {"X-Session-API-Key": user.key}):
        response = client.get("/nope", headers=headers, follow_redirects=False)
        assert (response.status_code, response.json()["detail"]) == (404, "Not Found")
    for accept in ("text/html,application/xhtml+xml,*/*;q=0.8", "text/*", "*/*"):
        assert client.get("/nope", headers={"Accept": accept}, follow_redirects=False).status_code == 303


def test_login_page_links_to_the_llm_settings_of_an_unpacked_web_ui(browser: TestClient, page: Path) -> None:
    assert 'href="/settings/llm"' in browser.get("/login").text
    (page / "index.html").unlink()
    assert "/settings/llm" not in browser.get("/login").text


class TestMissingPage:
    """Without an unpacked web UI, only the API is served."""

    @pytest.fixture
    def bare(self, context: Context, page: Path) -> Iterator[TestClient]:
        (page / "index.html").unlink()
        with TestClient(create_app(context)) as client:
            yield client

    def test_page_that_was_not_fetched_is_a_404(self, bare: TestClient) -> None:
        for path in ("/", "/conversations/1", "/assets/a-1.js"):
            assert (bare.get(path).status_code, bare.get(path).json()["detail"]) == (404, "Not Found")
        assert bare.get("/alive").status_code == 200


def test_setting_defines_the_folder_of_the_page(settings: Settings, tmp_path: Path) -> None:
    assert settings.canvas == tmp_path / "var" / "canvas"
    assert Settings(canvas_dir="elsewhere").canvas == tmp_path / "elsewhere"
