"""Logins and contexts: a key of its own for a machine, in a file that other users cannot read."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from fastapi.testclient import TestClient

from tests.factories import ApiUser
from tests.shared.cli.remote.conftest import URL, Handler, log_in
from tests.shared.cli.results import Cli, mode, rows

FILE = "config/agent-workspace/contexts.json"
IN_USE = [["service.test", URL, "yes"]]


@pytest.fixture
def approving(
    client: TestClient, user: ApiUser, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Approve each login immediately, as its user does; return the list of what the command printed for the user."""
    shown: list[str] = []

    def approve(_seconds: float) -> None:
        shown.append(capsys.readouterr().err)
        found = re.search(r"user_code=([A-Z-]+)", shown[-1])
        assert found is not None
        form = {"user_code": found[1], "decision": "approve", "api_key": user.key}
        assert client.post("/oauth/device/verify", data=form).status_code == 200

    # Only in this module, because other threads sleep too.
    monkeypatch.setattr("shared.cli.remote.login.time", SimpleNamespace(monotonic=time.monotonic, sleep=approve))
    return shown


def test_machine_gets_a_key_by_the_device_flow_and_revokes_it(
    served: Cli, approving: list[str], tmp_path: Path
) -> None:
    assert served("login", URL).status == 0
    assert len(approving) == 1
    assert mode(tmp_path / FILE) == 0o600
    assert rows(served("context", "list")) == IN_USE
    first, own = (row[1] for row in rows(served("keys", "list", "--own")))
    assert (first, own.startswith("device login agent-workspace on ")) == ("tests", True)
    key = stored_key(tmp_path)
    assert key not in served("context", "show").out + served("context", "list", "--json").out
    assert served("logout").status == 0
    assert rows(served("context", "list")) == []
    assert served("keys", "list", "--own").status == 4


@pytest.mark.parametrize(("code", "status", "left"), [(503, 1, ["stored"]), (403, 4, ["stored"]), (401, 0, [])])
def test_logout_forgets_no_key_that_it_could_not_revoke(
    scripted: Callable[[Handler], Cli], monkeypatch: pytest.MonkeyPatch, code: int, status: int, left: list[str]
) -> None:
    """The context has the only copy of a key that stays valid. A key that the service rejects is forgotten."""
    responses = [httpx.Response(200, json={"id": "1"}), httpx.Response(code, json={"detail": "no"})]
    run = scripted(lambda _request: responses.pop(0))
    monkeypatch.setattr("shared.cli.remote.login._run_device_flow", lambda _url: "key")
    assert run("login", URL, "--name", "stored").status == 0
    monkeypatch.delenv("AGENT_WORKSPACE_URL")
    ended = run("logout")
    assert (ended.status, [row[0] for row in rows(run("context", "list"))]) == (status, left)
    assert ("context remove stored" in ended.err) == bool(left)


def test_login_revokes_the_key_that_it_replaces(
    client: TestClient, served: Cli, approving: list[str], tmp_path: Path
) -> None:
    assert served("login", URL).status == 0
    former = stored_key(tmp_path)
    assert served("login", URL).status == 0
    assert len(approving) == 2
    assert client.get("/api/keys/current", headers={"Authorization": f"Bearer {former}"}).status_code == 401
    assert len(rows(served("keys", "list", "--own"))) == 2, "the user's, and this machine's"
    assert rows(served("context", "list")) == IN_USE


def test_login_warns_of_a_key_that_it_could_not_revoke(
    scripted: Callable[[Handler], Cli], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = {"GET": 200, "DELETE": 503}
    run = scripted(lambda request: httpx.Response(codes[request.method], json={"id": "1", "detail": "no"}))
    for key in ("aw_former_key", "aw_another_key"):
        monkeypatch.setattr("shared.cli.remote.login._run_device_flow", lambda _url, key=key: key)
        response = run("login", URL)
        assert response.status == 0
    assert "keys revoke aw_former_k --own" in response.err


def test_logout_leaves_a_given_key_valid(
    client: TestClient, served: Cli, user: ApiUser, approving: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The given key may be the administrator's only one."""
    monkeypatch.setattr("shared.cli.remote.login._read_key", lambda: user.key)
    assert served("login", URL, "--with-key").status == 0
    assert served("login", URL).status == 0, "it replaces the context"
    assert served("login", URL, "--with-key").status == 0
    ended = served("logout")
    assert (ended.status, user.key[:11] in ended.err, user.key in ended.err) == (0, True, False)
    assert rows(served("context", "list")) == []
    assert client.get("/api/keys/current", headers=user.headers).status_code == 200
    assert len(approving) == 1


def test_malformed_contexts_end_a_login_before_a_key_is_issued(
    served: Cli, approving: list[str], tmp_path: Path
) -> None:
    (tmp_path / FILE).parent.mkdir(parents=True)
    (tmp_path / FILE).write_text("{")
    (tmp_path / FILE).chmod(0o600)
    response = served("login", URL)
    assert (response.status, "malformed" in response.err, approving) == (1, True, [])


@pytest.mark.parametrize(("error", "status"), [("access_denied", 4), ("expired_token", 5)])
def test_device_that_is_not_approved_gets_no_key(scripted: Callable[[Handler], Cli], error: str, status: int) -> None:
    codes = {"device_code": "d", "user_code": "U", "verification_uri_complete": URL, "interval": 5, "expires_in": 9}

    def respond(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/authorize"):
            return httpx.Response(200, json=codes)
        return httpx.Response(400, json={"error": error, "error_description": "no", "interval": 5})

    assert scripted(respond)("login", URL).status == status


@pytest.mark.parametrize("failure", [httpx.ConnectError("refused"), httpx.ReadTimeout("late"), 429, 502, 503, 504])
def test_poll_that_fails_does_not_end_a_login(
    scripted: Callable[[Handler], Cli], failure: httpx.HTTPError | int
) -> None:
    """The service may restart while its user approves the login."""
    codes = {"device_code": "d", "user_code": "U", "verification_uri_complete": URL, "interval": 5, "expires_in": 600}
    failures = [failure]

    def respond(request: httpx.Request) -> httpx.Response:
        if request.url.path != "/oauth/device/token":
            return httpx.Response(200, json=codes | {"id": "1"})
        match failures.pop() if failures else None:
            case None:
                return httpx.Response(200, json={"access_token": "key"})
            case int() as status:
                return httpx.Response(status, json={"detail": "later"})
            case error:
                raise error

    assert scripted(respond)("login", URL).status == 0


def test_login_whose_last_poll_failed_reports_why(scripted: Callable[[Handler], Cli]) -> None:
    codes = {"device_code": "d", "user_code": "U", "verification_uri_complete": URL, "interval": 0, "expires_in": 0.2}

    def respond(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/oauth/device/token":
            return httpx.Response(307, headers={"Location": "https://elsewhere.example/"})
        return httpx.Response(200, json=codes)

    done = scripted(respond)("login", URL)
    assert done.status != 0
    assert "redirects to https://elsewhere.example" in done.err


def test_contexts_are_chosen_and_removed(served: Cli, user: ApiUser, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        monkeypatch.setattr("shared.cli.remote.login._read_key", lambda: user.key)
        assert served("login", URL, "--with-key", "--name", name).status == 0
    assert served("context", "use", "one").status == 0
    assert [row[2] for row in rows(served("context", "list"))] == ["yes", "no"]
    assert served("sandboxes", "list", "--context", "two").status == 0
    assert served("sandboxes", "list", "--context", "three").status == 3
    assert served("context", "remove", "one").status == 0
    gone = served("sandboxes", "list")
    assert (gone.status, "login" in gone.err) == (4, True)


def test_option_wins_over_the_environment(scripted: Callable[[Handler], Cli], monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[str] = []

    def respond(request: httpx.Request) -> httpx.Response:
        requested.append(request.url.host)
        return httpx.Response(200, json={"id": "k", "items": [], "next_page_id": None})

    run = scripted(respond)
    monkeypatch.setattr("shared.cli.remote.login._read_key", lambda: "key")
    assert run("login", "http://stored.test", "--with-key", "--name", "stored").status == 0
    requested.clear()
    monkeypatch.setenv("AGENT_WORKSPACE_CONTEXT", "stored")
    assert run("sandboxes", "list", "--url", "http://named.test").status == 0
    assert run("sandboxes", "list").status == 0
    monkeypatch.delenv("AGENT_WORKSPACE_CONTEXT")
    assert run("sandboxes", "list", "--context", "stored").status == 0
    assert requested == ["named.test", "stored.test", "stored.test"]
    both = run("sandboxes", "list", "--context", "stored", "--url", "http://named.test")
    assert (both.status, "--context" in both.err, len(requested)) == (2, True, 3)


def test_key_that_is_not_valid_is_not_kept(served: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.cli.remote.login._read_key", lambda: "wrong")
    refused = served("login", URL, "--with-key")
    assert (refused.status, "wrong" in refused.err) == (4, False)
    assert rows(served("context", "list")) == []
    log_in(monkeypatch, "wrong")
    assert served("sandboxes", "list").status == 4


def test_file_that_others_can_read_is_refused(served: Cli, tmp_path: Path) -> None:
    (tmp_path / FILE).parent.mkdir(parents=True)
    (tmp_path / FILE).write_text("{}")
    (tmp_path / FILE).chmod(0o644)
    refused = served("sandboxes", "list")
    assert (refused.status, "chmod 600" in refused.err) == (1, True)
    (tmp_path / FILE).chmod(0o600)
    assert "malformed" in served("context", "list").err


@pytest.mark.parametrize(
    "command",
    [
        ("conversations", "send", "a" * 32, "Hello"),
        ("conversations", "download", "a" * 32, "-o", "out.zip"),
        ("login", URL, "--with-key"),
        ("login", URL),
    ],
)
def test_redirect_is_an_error_and_stores_no_context(
    scripted: Callable[[Handler], Cli], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shared.cli.remote.login._read_key", lambda: "key")

    def redirect(request: httpx.Request) -> httpx.Response:
        return httpx.Response(308, headers={"Location": f"https://elsewhere.test{request.url.path}"})

    response = scripted(redirect)(*command)
    assert (response.status, "redirects to https://elsewhere.test: log in" in response.err) == (1, True), response
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["foo:bar", "http://xn--/"])
def test_redirect_to_no_host_is_one_line(scripted: Callable[[Handler], Cli], place: str) -> None:
    response = scripted(lambda _request: httpx.Response(307, headers={"Location": place}))("sandboxes", "list")
    assert (response.status, response.err.count("\n"), f"cannot reach {URL}" in response.err) == (1, 1, True), response


def test_service_that_cannot_be_used_is_one_line(
    scripted: Callable[[Handler], Cli], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    run = scripted(refuse)
    response = run("sandboxes", "list")
    assert (response.status, response.err.count("\n"), URL in response.err) == (1, 1, True)
    monkeypatch.delenv("AGENT_WORKSPACE_KEY")
    assert "AGENT_WORKSPACE_KEY" in run("sandboxes", "list").err
    assert "is not the URL" in run("login", "ftp://service.test").err


@pytest.mark.parametrize(
    ("command", "body"),
    [
        *((("login", URL, *options), body) for options in ((), ("--with-key",)) for body in ("<p>Hi</p>", "", "[]")),
        (("sandboxes", "list"), "<p>Hi</p>"),
        (("sandboxes", "pause", "a" * 32), "<p>Hi</p>"),
    ],
)
def test_address_of_another_program_is_named(
    scripted: Callable[[Handler], Cli],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: tuple[str, ...],
    body: str,
) -> None:
    monkeypatch.setattr("shared.cli.remote.login._read_key", lambda: "key")
    response = scripted(lambda _request: httpx.Response(200, text=body))(*command)
    last = response.err.splitlines()[-1]
    assert (response.status, f"{URL} does not respond like Agent Workspace" in last) == (1, True), response
    assert not (tmp_path / "config").exists()


def test_own_keys_are_created_and_revoked(alice: Cli) -> None:
    created = alice("keys", "create", "--own", "--name", "ci", "--expires-in-days", "1")
    assert created.status == 0
    key = created.out.strip()
    assert key not in alice("keys", "list", "--own", "--json").out
    assert alice("keys", "list", "--own", "-q").out.split()[-1] == key[:11]
    assert alice("keys", "revoke", key[:11], "--own").status == 0
    assert alice("keys", "revoke", key[:11], "--own").status == 3
    assert alice("keys", "list").status == 2


def stored_key(folder: Path) -> str:
    return (folder / FILE).read_text().split('"key": "')[1].split('"')[0]
