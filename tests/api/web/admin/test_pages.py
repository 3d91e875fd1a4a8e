"""The content of the operators' pages, in which texts of users and sandboxes are escaped."""

from datetime import timedelta
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from shared.clock import now
from shared.container_logs import kept_logs
from shared.container_logs.kept_logs import LogCause
from shared.db.database import Database
from shared.models import ApiKey, SandboxLog, SandboxTransition
from shared.states import NodeStatus, Reason, Status
from tests.factories import (
    ApiUser,
    make_conversation,
    make_node,
    make_sandbox,
    make_spec,
    make_start_task,
    make_user,
)

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


def test_overview_shows_what_waits_and_what_failed(browser: TestClient, database: Database, user: ApiUser) -> None:
    log = "the container exited with exit code 3\n" + "\n".join(f"line {number}" for number in range(30))
    failed = make_sandbox(database, user, status=Status.ERROR, reason=Reason.EXIT_CODE, detail=log)
    waiting = make_sandbox(database, user, status=Status.STARTING, due_at=now() - timedelta(minutes=5))
    task = make_start_task(database, user)
    make_node(database, "node-b", status=NodeStatus.CORDONED, closed_reason="no disks", capacity=7)
    make_spec(database, "pooled", warm_target=3, warm_most=4, warm_failures=2, warm_detail="image_pull_failed: no")
    page = browser.get("/admin").text
    for text in (
        *(failed.id, "exit_code", "exit code 3", "line 29", waiting.id, "5 min", task.id[:8], "WORKING"),
        *("node-b", "CORDONED", "no disks", "0 of 7", "pooled", "2 failures in a row: image_pull_failed: no"),
    ):
        assert text in page
    assert "line 3\n" not in page  # only the last lines


def test_texts_of_users_and_sandboxes_are_escaped(browser: TestClient, database: Database) -> None:
    mallory = make_user(database, HOSTILE[:100])
    node = make_node(database, HOSTILE[:64], detail=HOSTILE, closed_reason=HOSTILE)
    make_spec(database, HOSTILE, warm_target=1, warm_failures=1, warm_detail=HOSTILE)
    sandbox = make_sandbox(
        database, mallory, status=Status.ERROR, node_id=node.id, spec_id=HOSTILE, reason=HOSTILE, detail=HOSTILE
    )
    make_conversation(database, mallory, sandbox, title=HOSTILE, execution_reason=HOSTILE)
    with database.transaction() as session:
        session.add(ApiKey(user_id=mallory.id, name=HOSTILE, prefix="aw_x", digest="d"))
        session.add(
            SandboxTransition(sandbox_id=sandbox.id, to_status=Status.ERROR, reason=HOSTILE, phases={HOSTILE: 1})
        )
    for path in (
        *("", "/sandboxes", f"/sandboxes/{sandbox.id}", "/nodes", "/users", "/audit"),
        *(f"/user?name={quote(mallory.name)}", f"/sandboxes?reason={quote(HOSTILE)}"),
    ):
        response = browser.get(f"/admin{path}")
        assert response.status_code == 200, path
        assert ("<script>alert" in response.text, "<img" in response.text) == (False, False), path
    assert "&lt;img" in browser.get(f"/admin/sandboxes/{sandbox.id}").text


def test_sandbox_shows_its_history_and_the_phases_of_its_start(
    browser: TestClient, database: Database, user: ApiUser
) -> None:
    sandbox = make_sandbox(database, user)
    began = now() - timedelta(minutes=10)
    moves = [
        (None, "STARTING", None, None),
        ("STARTING", "RUNNING", None, {"queue": 0.25, "create": 1.5, "health": 4.0}),
        ("RUNNING", "PAUSED", "idle_frozen", None),
    ]
    with database.transaction() as session:
        for place, (before, after, reason, phases) in enumerate(moves):
            at = began + timedelta(seconds=6 * place)
            session.add(
                SandboxTransition(
                    sandbox_id=sandbox.id, from_status=before, to_status=after, reason=reason, phases=phases, at=at
                )
            )
    page = browser.get(f"/admin/sandboxes/{sandbox.id}").text
    for text in ("waits for a worker", "image and container", "1.5 s", "agent server boots", "idle_frozen", "9 min"):
        assert text in page
    assert page.count("<rect") == 6
    assert sandbox.session_key not in page


def test_kept_logs_of_a_deleted_sandbox_are_shown_as_text(
    browser: TestClient, database: Database, user: ApiUser
) -> None:
    sandbox = make_sandbox(database, user, status=Status.DELETED)
    with database.transaction() as session:
        log = SandboxLog(sandbox_id=sandbox.id, owner_id=user.id, container_id="c0ffee" * 10, expires_at=now())
        log.text, log.cause, log.is_cut = f"2026-01-01T00:00:00.000000000Z {HOSTILE}\n", LogCause.REMOVED, True
        kept_logs.keep(session, log)
    page = browser.get(f"/admin/sandboxes/{sandbox.id}").text
    for text in ("c0ffeec0ffee<", "Kept because it was removed", "Earlier lines are missing", "&lt;img", "1 lines"):
        assert text in page
    assert "<img" not in page


def test_deleted_sandbox_without_a_history_is_shown(browser: TestClient, database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user, status=Status.DELETED)
    response = browser.get(f"/admin/sandboxes/{sandbox.id}")
    assert (response.status_code, "<button" in response.text) == (200, False)


def test_users_and_keys_are_shown_with_their_last_use(browser: TestClient, database: Database, user: ApiUser) -> None:
    assert browser.get("/admin").status_code == 200
    page = browser.get("/admin/users").text
    assert ("olivia" in page, "alice" in page, "<b>admin</b>" in page) == (True, True, True)
    make_sandbox(database, user)
    page = browser.get("/admin/user?name=alice").text
    assert ("never" in page, user.key in page, user.key[:11] in page) == (True, False, True)


@pytest.mark.parametrize("path", ["/admin/users", "/admin/audit", "/admin/sandboxes"])
def test_empty_lists_are_shown(browser: TestClient, path: str) -> None:
    assert browser.get(path).status_code == 200
