"""`sandboxes`: the caller's sandboxes, through the API."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import httpx
import pytest

from shared.cli.output import CONTROLS
from shared.db.database import Database
from shared.models import Sandbox
from shared.states import Desired, Status
from tests.factories import ApiUser, make_sandbox
from tests.rows import as_stored
from tests.shared.cli.remote.conftest import URL, Handler
from tests.shared.cli.results import Cli, rows

BODY = {"exit_code": 3, "stdout": "out\n", "stderr": "err\n"}


def test_sandboxes_are_listed_and_shown_without_their_keys(alice: Cli, sandbox: Sandbox) -> None:
    [row] = rows(alice("sandboxes", "list", "--status", "RUNNING"))
    assert row[:2] == [sandbox.id, "RUNNING"]
    assert rows(alice("sandboxes", "list", "--status", "PAUSED")) == []
    assert alice("sandboxes", "list", "-q").out == f"{sandbox.id}\n"
    [listed] = json.loads(alice("sandboxes", "list", "--json").out)
    shown = json.loads(alice("sandboxes", "show", sandbox.id, "--json").out)
    assert listed == {name: value for name, value in shown.items() if name != "history"}
    assert "session_api_key" not in shown
    assert alice("sandboxes", "show", sandbox.id).out.startswith(f"id               {sandbox.id}\n")
    assert alice("sandboxes", "list", "--json", "-q").status == 2
    assert alice("sandboxes", "list", "--status", "GONE").status == 1


def test_sandbox_is_started_paused_resumed_and_deleted(alice: Cli, database: Database, sandbox: Sandbox) -> None:
    started = alice("sandboxes", "start", "--no-wait")
    assert (started.status, len(started.out.strip())) == (0, 32)
    for command, desired in (("pause", Desired.PAUSED), ("resume", Desired.RUNNING)):
        assert alice("sandboxes", command, sandbox.id, "--no-wait").status == 0
        assert as_stored(database, sandbox).desired == desired
    refused = alice("sandboxes", "delete", sandbox.id)
    assert (refused.status, "--yes" in refused.err, as_stored(database, sandbox).desired) == (2, True, Desired.RUNNING)
    assert alice("sandboxes", "delete", sandbox.id, "--no-wait", "--yes").status == 0
    assert as_stored(database, sandbox).desired == Desired.DELETED


def test_id_of_a_new_sandbox_is_printed_before_the_wait(
    scripted: Callable[[Handler], Cli], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a Ctrl-C the user must know which sandbox to delete."""
    requested: list[httpx.Request] = []

    def respond(request: httpx.Request) -> httpx.Response:
        requested.append(request)
        return httpx.Response(200, json={"id": "a" * 32, "status": "STARTING"})

    def press_ctrl_c(_seconds: float) -> None:
        raise KeyboardInterrupt

    run = scripted(respond)
    monkeypatch.setattr("shared.cli.remote.waiting.time", SimpleNamespace(monotonic=time.monotonic, sleep=press_ctrl_c))
    ended = run("sandboxes", "start")
    assert (ended.status, ended.out) == (130, f"{'a' * 32}\n")
    assert [request.method for request in requested] == ["POST", "GET"]
    assert "wait" not in requested[0].url.params


@pytest.mark.parametrize("command", [("pause",), ("resume",), ("delete", "--yes")])
def test_command_waits_no_longer_than_its_timeout(
    scripted: Callable[[Handler], Cli], monkeypatch: pytest.MonkeyPatch, command: Sequence[str]
) -> None:
    """The service waits first, and then the command line polls."""
    clock = [0.0]

    def advance(seconds: float) -> None:
        clock[0] += seconds

    def respond(request: httpx.Request) -> httpx.Response:
        advance(float(request.url.params.get("wait", 0)))
        shown = [{"to_status": "STARTING"}] if request.url.path.endswith("/transitions") else {"status": "STARTING"}
        return httpx.Response(200, json=shown, headers={"Operation-Settled": "false"})

    for module in ("sandboxes", "waiting"):
        scripted_time = SimpleNamespace(monotonic=lambda: clock[0], sleep=advance)
        monkeypatch.setattr(f"shared.cli.remote.{module}.time", scripted_time)
    ended = scripted(respond)("sandboxes", command[0], "a" * 32, *command[1:], "--timeout", "10")
    assert (ended.status, clock) == (5, [10.0])
    assert "did not happen within 10 s" in ended.err


def test_exit_status_shows_the_outcome_of_a_wait(
    alice: Cli, database: Database, user: ApiUser, sandbox: Sandbox
) -> None:
    assert alice("sandboxes", "wait", sandbox.id).status == 0
    assert alice("sandboxes", "wait", sandbox.id, "--for", "PAUSED", "--timeout", "0").status == 5
    failed = make_sandbox(database, user, status=Status.ERROR, reason="oom_killed", detail="last lines")
    response = alice("sandboxes", "wait", failed.id)
    assert (response.status, "explain oom_killed" in response.err) == (1, True)
    assert alice("sandboxes", "wait", "0" * 32).status == 3
    assert alice("sandboxes", "show", "0" * 32).status == 3
    assert alice("sandboxes", "show", "x").status == 1


@pytest.mark.parametrize(("exit_code", "status"), [(0, 0), (3, 3), (-1, 5)])
def test_command_in_a_sandbox_gives_its_output_and_status(
    scripted: Callable[[Handler], Cli], exit_code: int, status: int
) -> None:
    requested: list[httpx.Request] = []

    def respond(request: httpx.Request) -> httpx.Response:
        requested.append(request)
        return httpx.Response(200, json=BODY | {"exit_code": exit_code})

    done = scripted(respond)("sandboxes", "exec", "--timeout", "7", "a" * 32, "ls", "-la", "a b")
    assert done.status == status
    assert (done.out, done.err.splitlines()[0]) == ("out\n", "err")
    assert json.loads(requested[0].content) == {"command": "ls -la 'a b'", "timeout": 7}
    assert requested[0].url.path == f"/sandbox/{'a' * 32}/api/bash/execute_bash_command"


def test_response_of_a_sandbox_is_bounded(scripted: Callable[[Handler], Cli], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.cli.remote.service.MAX_ANSWER_BYTES", 10)
    response = scripted(lambda _: httpx.Response(200, json=BODY))("sandboxes", "exec", "a" * 32, "yes")
    assert (response.status, "longer than" in response.err) == (1, True)


@pytest.mark.parametrize("command", [("sandboxes", "exec", "a" * 32, "ls"), ("login", URL)])
def test_no_text_of_a_service_or_a_sandbox_controls_the_terminal(
    scripted: Callable[[Handler], Cli], command: tuple[str, ...]
) -> None:
    hostile = "\x1b]52;c;ZXZpbA==\x07\x9b8m"
    codes = {"device_code": "d", "user_code": hostile, "verification_uri_complete": hostile}

    def respond(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/authorize"):
            return httpx.Response(200, json=codes | {"interval": 5, "expires_in": 9})
        return httpx.Response(400, json={"detail": hostile, "error": "odd", "error_description": hostile})

    failed = scripted(respond)(*command)
    assert (failed.status != 0, "]52;c;" in failed.err, CONTROLS.findall(failed.err)) == (True, True, [])


@pytest.mark.parametrize("is_terminal", [True, False])
def test_output_of_a_command_is_unchanged_except_on_a_terminal(
    scripted: Callable[[Handler], Cli], monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    raw, lost = "a\tb\r\n\x1b]0;title\x07", "\N{REPLACEMENT CHARACTER}"
    shown = f"a       b\n{lost}]0;title{lost}{lost}"
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    body = json.dumps({"exit_code": 0, "stdout": f"{raw}\ud800", "stderr": f"{raw}\ud800"})
    done = scripted(lambda _: httpx.Response(200, text=body))("sandboxes", "exec", "a" * 32, "ls")
    assert (done.out, done.err) == ((shown, shown) if is_terminal else (raw + lost, raw + lost))
