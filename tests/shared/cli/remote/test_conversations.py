"""`conversations`: the caller's conversations, through the API."""

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from shared.db.database import Database
from shared.ids import new_id
from shared.models import Conversation, Sandbox
from shared.states import Stage
from tests.factories import ApiUser, make_event, make_start_task
from tests.shared.cli.remote.conftest import Handler
from tests.shared.cli.results import Cli, rows

LOST = "\N{REPLACEMENT CHARACTER}"
SAID = {"kind": "MessageEvent", "source": "user", "llm_message": {"content": [{"type": "text", "text": "Hi \x1b[2J"}]}}


def event(number: int, **fields: object) -> dict[str, object]:
    return {"id": str(number), "timestamp": f"2026-11-25T10:00:0{number}", "source": "agent", **fields}


def test_conversations_are_listed_shown_and_downloaded(alice: Cli, conversation: Conversation, tmp_path: Path) -> None:
    [row] = rows(alice("conversations", "list"))
    assert row[:3] == [conversation.id, conversation.title, "RUNNING"]
    assert (
        json.loads(alice("conversations", "show", conversation.id, "--json").out)["id"].replace("-", "")
        == conversation.id
    )
    file = tmp_path / "out.zip"
    assert alice("conversations", "download", conversation.id, "-o", str(file)).status == 0
    assert zipfile.ZipFile(io.BytesIO(file.read_bytes())).namelist()
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []
    assert alice("conversations", "show", "0" * 32).status == 3


def test_download_that_fails_leaves_no_file(scripted: Callable[[Handler], Cli], tmp_path: Path) -> None:
    """It may have filled the disk, and its file is hidden."""

    class LostConnection(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield b"the first part"
            raise httpx.ReadError("lost")

    file = tmp_path / "out.zip"
    file.write_text("of an earlier download")
    failed = scripted(lambda _: httpx.Response(200, stream=LostConnection()))(
        "conversations", "download", "0" * 32, "-o", str(file)
    )
    assert (failed.status, file.read_text()) == (1, "of an earlier download")
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.usefixtures("model_key", "node", "spec")
def test_conversation_is_started_and_its_start_cancelled(alice: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.cli.remote.conversations.CANCEL_SECONDS", 1)  # no worker runs
    started = alice("conversations", "start", "-m", "Hello", "--repo", "a/b", "--no-wait")
    assert started.status == 0
    conversation_id = started.out.strip()
    assert "WORKING" in alice("conversations", "show", conversation_id).out
    assert alice("conversations", "send", conversation_id, "And this").status == 0
    cancelled = alice("conversations", "cancel", conversation_id)
    assert (cancelled.status, "cancelled" in cancelled.out) == (0, True)


@pytest.mark.parametrize("stage", [Stage.READY, Stage.ERROR])
def test_start_is_found_behind_a_hundred_newer_ones(
    alice: Cli, database: Database, user: ApiUser, stage: Stage
) -> None:
    conversation_id = new_id()
    request = {"conversation_id": conversation_id}
    make_start_task(database, user, stage=Stage.ERROR, request=request, reason="clone_failed")
    for _ in range(100):
        make_start_task(database, user, stage=stage)
    assert "clone_failed" in alice("conversations", "show", conversation_id).out
    assert alice("conversations", "cancel", conversation_id).status == 0


def test_failed_start_has_its_reason(scripted: Callable[[Handler], Cli]) -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        task = {"id": "t", "status": "ERROR", "reason": "clone_failed", "detail": "no such repository"}
        return httpx.Response(200, json=task | {"status": "WORKING"} if request.method == "POST" else task)

    failed = scripted(respond)("conversations", "start", "-m", "Hello")
    assert (failed.status, "explain clone_failed" in failed.err, len(failed.out.strip())) == (1, True, 32)


def test_events_are_lines_without_control_characters(
    alice: Cli, database: Database, conversation: Conversation
) -> None:
    halved = {"content": [{"type": "text", "text": "Hi \x1b[2J\ud800"}]}
    make_event(database, conversation, body=event(0) | SAID | {"id": "one", "llm_message": halved})
    assert alice("conversations", "events", conversation.id).out == f"10:00:00 user: Hi {LOST}[2J{LOST}\n"
    assert alice("conversations", "events", conversation.id, "-q").out == "one\n"
    shown = json.loads(alice("conversations", "events", conversation.id, "--json").out)
    assert (shown["id"], shown["llm_message"]) == ("one", halved)
    assert alice("conversations", "events", "0" * 32).status == 3


@pytest.mark.parametrize(("end", "status"), [("finished", 0), ("error", 1)])
def test_events_are_followed_until_the_agent_has_ended(
    scripted: Callable[[Handler], Cli], end: str, status: int
) -> None:
    action = {"kind": "ActionEvent", "tool_name": "terminal", "action": {"command": "ls"}}
    events = [event(1, **SAID), event(2, **action), event(3, kind="StreamingDeltaEvent")]
    polls: list[str] = []

    def respond(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/events/search"):
            status = end if len(polls) > 2 else "running"
            return httpx.Response(200, json={"execution_status": status, "execution_detail": "it broke"})
        polls.append(request.url.params.get("timestamp__gte", ""))
        return httpx.Response(200, json={"items": events[: len(polls)], "next_page_id": None})

    done = scripted(respond)("conversations", "events", "a" * 32, "--follow")
    assert done.out.splitlines()[-1] == "10:00:02 terminal >: ls"
    assert len(done.out.splitlines()) == 2
    assert (done.status, polls[1]) == (status, "2026-11-25T10:00:01+00:00")
    assert ("it broke" in done.err) == bool(status)


@pytest.mark.parametrize(
    ("execution_status", "sandbox_status", "why"),
    [
        ("paused", "RUNNING", "stopped"),
        (None, "PAUSED", "PAUSED"),
        (None, "ERROR", "ERROR"),
        (None, "MISSING", "MISSING"),
    ],
)
def test_follow_ends_if_no_agent_runs(
    scripted: Callable[[Handler], Cli], execution_status: str | None, sandbox_status: str, why: str
) -> None:
    polls: list[int] = []

    def respond(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/events/search"):
            return httpx.Response(200, json={"items": [event(1, **SAID)], "next_page_id": None})
        polls.append(1)
        shown = {"execution_status": execution_status, "sandbox_status": sandbox_status}
        return httpx.Response(200 if len(polls) < 20 else 500, json=shown)

    done = scripted(respond)("conversations", "events", "a" * 32, "--follow")
    assert (done.status, why in done.err, len(done.out.splitlines())) == (0, True, 1)


def test_followed_events_of_one_moment_are_printed_once(scripted: Callable[[Handler], Cli]) -> None:
    events = [event(1, **SAID) | {"id": str(number)} for number in range(50)]
    polls: list[int] = []

    def respond(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/events/search"):
            polls.append(1)
            return httpx.Response(200 if len(polls) < 20 else 500, json={"execution_status": "finished"})
        return httpx.Response(200, json={"items": events, "next_page_id": None})

    done = scripted(respond)("conversations", "events", "a" * 32, "--follow")
    assert (done.status, len(done.out.splitlines()), len(polls)) == (0, 50, 4)


@pytest.mark.parametrize(
    "stated", ["9999-12-31T23:59:59", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "99991231T235959"]
)
def test_forged_times_of_events_do_not_end_a_follow(scripted: Callable[[Handler], Cli], stated: str) -> None:
    lies = [event(1, **SAID) | {"id": f"lie {number}", "timestamp": stated} for number in range(30)]
    events, polls = [event(1, **SAID), *lies, event(2, **SAID)], []

    def respond(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/events/search"):
            return httpx.Response(200, json={"execution_status": "finished"})
        polls.append(request.url.params.get("timestamp__gte", ""))
        assert polls[-1] in ("", "2026-11-25T10:00:01+00:00")
        return httpx.Response(200, json={"items": events if polls[1:] else events[:-1], "next_page_id": None})

    done = scripted(respond)("conversations", "events", "a" * 32, "--follow")
    assert (done.status, len(done.out.splitlines())) == (0, len(events)), done
    assert done.out.splitlines()[-1].startswith("10:00:02")


def test_running_agent_is_interrupted(scripted: Callable[[Handler], Cli]) -> None:
    posted: list[str] = []

    def respond(request: httpx.Request) -> httpx.Response:
        posted.extend([request.url.path] if request.method == "POST" else [])
        return httpx.Response(200, json={"sandbox_status": "RUNNING", "sandbox_id": "s"})

    assert scripted(respond)("conversations", "cancel", "a" * 32).status == 0
    assert posted == ["/sandbox/s/api/conversations/aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa/interrupt"]


def test_start_task_of_another_user_is_not_cancelled(
    alice: Cli, database: Database, other_user: ApiUser, sandbox: Sandbox
) -> None:
    task = make_start_task(database, other_user, sandbox, stage=Stage.WORKING)
    assert alice("conversations", "cancel", task.conversation_id).status == 3
