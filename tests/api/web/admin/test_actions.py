"""The forms of the operators' pages have the same effect as the API and the command line, and are audited."""

import re
from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlmodel import col, select

from shared.clock import now
from shared.db.database import Database
from shared.models import AuditEntry, Node, Sandbox
from shared.queue.jobs import CheckSandbox, DeleteSandbox, Job, PauseSandbox
from shared.states import Desired, NodeStatus, Reason, Status
from shared.users import audit
from shared.users.audit import Actor
from tests.api.web.admin.conftest import Act
from tests.doubles import RecordingPublisher
from tests.factories import NODE_ID, ApiUser, make_node, make_sandbox

# The field of the form that deletes a sandbox.
GENERATION = re.compile(r'name="generation" value="([0-9]+)"')
CORDON = re.compile(r'action="(/admin/nodes/[^"]+/cordon)"')


def read(database: Database, sandbox: Sandbox) -> Sandbox:
    with database.reading() as session:
        return session.get_one(Sandbox, sandbox.id)


def recorded(database: Database) -> list[tuple[Any, ...]]:
    with database.reading() as session:
        rows = session.exec(select(AuditEntry).order_by(col(AuditEntry.id))).all()
        return [(row.actor, row.action, row.subject) for row in rows]


@pytest.mark.parametrize(
    ("action", "status", "desired", "job"),
    [
        ("retry", Status.ERROR, Desired.RUNNING, CheckSandbox),
        ("retry", Status.PAUSED, Desired.PAUSED, CheckSandbox),
        ("pause", Status.RUNNING, Desired.PAUSED, PauseSandbox),
        ("delete", Status.RUNNING, Desired.DELETED, DeleteSandbox),
        ("delete", Status.ERROR, Desired.DELETED, DeleteSandbox),
    ],
)
def test_action_is_a_desired_state_and_a_job(
    act: Act,
    database: Database,
    user: ApiUser,
    publisher: RecordingPublisher,
    action: str,
    status: Status,
    desired: Desired,
    job: type[Job],
) -> None:
    sandbox = make_sandbox(database, user, status=status)
    response = act(f"/admin/sandboxes/{sandbox.id}/{action}", generation=sandbox.generation)
    assert (response.status_code, response.headers["Location"]) == (303, f"/admin/sandboxes/{sandbox.id}")
    row = read(database, sandbox)
    assert (row.desired, row.generation) == (desired, sandbox.generation + 1)
    assert publisher.jobs == [job(sandbox.id, sandbox.node_id)]
    assert recorded(database)[1:] == [("olivia", action, sandbox.id)]


def test_retry_of_a_sandbox_in_error_shows_it_starting(act: Act, database: Database, user: ApiUser) -> None:
    """Its owner's client, which polls the status, would give up at the old failure."""
    failed, paused = (make_sandbox(database, user, status=status) for status in (Status.ERROR, Status.PAUSED))
    for sandbox in (failed, paused):
        assert act(f"/admin/sandboxes/{sandbox.id}/retry").status_code == 303
    assert (read(database, failed).status, read(database, failed).reason) == (Status.STARTING, None)
    assert read(database, paused).status == Status.PAUSED


def test_retry_of_a_delete_makes_it_due_now(act: Act, database: Database, user: ApiUser) -> None:
    later = now() + timedelta(seconds=10)
    sandbox = make_sandbox(database, user, status=Status.DELETING, due_at=later)
    assert act(f"/admin/sandboxes/{sandbox.id}/retry").status_code == 303
    row = read(database, sandbox)
    assert row.due_at is not None
    assert (row.generation, row.due_at < later) == (sandbox.generation, True)


@pytest.mark.parametrize(
    ("action", "status", "refusal"),
    [
        ("pause", Status.PAUSED, 409),
        ("delete", Status.DELETING, 409),
        ("retry", Status.DELETED, 409),
        ("explode", Status.RUNNING, 422),
    ],
)
def test_action_that_does_not_apply_is_refused(
    act: Act, database: Database, user: ApiUser, action: str, status: Status, refusal: int
) -> None:
    sandbox = make_sandbox(database, user, status=status)
    assert act(f"/admin/sandboxes/{sandbox.id}/{action}").status_code == refusal
    assert read(database, sandbox).generation == sandbox.generation
    assert len(recorded(database)) == 1


def test_sandbox_of_a_lost_node_is_moved_by_its_owner_only(
    act: Act, browser: TestClient, database: Database, user: ApiUser
) -> None:
    lost = make_sandbox(database, user, status=Status.ERROR, desired=Desired.RUNNING, reason=Reason.NODE_LOST)
    response = act(f"/admin/sandboxes/{lost.id}/retry")
    assert (response.status_code, "would lose its files" in response.text) == (409, True)
    assert read(database, lost).generation == lost.generation
    assert f"{lost.id}/retry" not in browser.get(f"/admin/sandboxes/{lost.id}").text
    assert act(f"/admin/sandboxes/{lost.id}/delete", generation=lost.generation).status_code == 303


def test_warm_sandbox_can_be_removed(act: Act, database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user, owner_id=None, boot_key="k")
    assert act(f"/admin/sandboxes/{sandbox.id}/pause").status_code == 409
    assert act(f"/admin/sandboxes/{sandbox.id}/delete", generation=sandbox.generation).status_code == 303
    assert read(database, sandbox).desired == Desired.DELETED


def test_delete_of_a_sandbox_that_changed_since_its_page_was_loaded_is_refused(
    act: Act, browser: TestClient, database: Database, user: ApiUser
) -> None:
    warm = make_sandbox(database, user, owner_id=None, boot_key="k")
    [seen] = GENERATION.findall(browser.get(f"/admin/sandboxes/{warm.id}").text)
    with database.transaction() as session:  # a user's start claims it
        row = session.get_one(Sandbox, warm.id)
        row.owner_id, row.generation = user.id, row.generation + 1
    for generation in (seen, "", "x"):
        response = act(f"/admin/sandboxes/{warm.id}/delete", generation=generation)
        assert (response.status_code, "has changed" in response.text) == (409, True)
    assert read(database, warm).desired == Desired.RUNNING
    assert len(recorded(database)) == 1
    [seen] = GENERATION.findall(browser.get(f"/admin/sandboxes/{warm.id}").text)
    assert act(f"/admin/sandboxes/{warm.id}/delete", generation=seen).status_code == 303


@pytest.mark.parametrize("name", ["rack 1/a", "a/cordon", "a?b#c", "a/"])
def test_node_with_url_characters_in_its_name_is_cordoned(
    act: Act, browser: TestClient, database: Database, name: str
) -> None:
    make_node(database, name)
    [path] = CORDON.findall(browser.get("/admin/nodes").text)
    assert act(path).status_code == 303
    with database.reading() as session:
        assert session.get_one(Node, name).status == NodeStatus.CORDONED


def test_nodes_are_cordoned_drained_and_uncordoned(act: Act, database: Database, user: ApiUser) -> None:
    running, stopped = make_sandbox(database, user), make_sandbox(database, user, status=Status.ERROR)
    for action, status in (
        ("cordon", NodeStatus.CORDONED),
        ("uncordon", NodeStatus.READY),
        ("drain", NodeStatus.CORDONED),
    ):
        response = act(f"/admin/nodes/{NODE_ID}/{action}")
        assert (response.status_code, response.headers["Location"]) == (303, "/admin/nodes")
        with database.reading() as session:
            assert session.get_one(Node, NODE_ID).status == status
    assert read(database, running).desired == Desired.STOPPED
    assert read(database, stopped).generation == stopped.generation
    assert [entry[1:] for entry in recorded(database)[1:]] == [
        (action, NODE_ID) for action in ("cordon", "uncordon", "drain")
    ]
    for name in ("nowhere", "%00", "a b"):
        assert act(f"/admin/nodes/{name}/cordon").status_code in (400, 404, 422)


def test_audit_log_is_shown_and_expires(browser: TestClient, database: Database) -> None:
    with database.transaction() as session:
        old = AuditEntry(action="cordon", subject="long-ago", at=now() - audit.RETENTION - timedelta(days=1))
        session.add(old)
    with database.transaction() as session:
        audit.record(session, Actor("olivia", "aw_12345678"), "drain", "node-x")
    page = browser.get("/admin/audit").text
    assert ("node-x" in page, "aw_12345678" in page, "command line" in page, "long-ago" in page) == (
        *(True, True, True),
        False,
    )
