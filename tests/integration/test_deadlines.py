"""Deadlines on real components: an idle sandbox is paused, stopped and deleted in its engine; activity postpones it."""

from datetime import datetime
from typing import Any

import pytest

from shared.clock import now
from shared.ids import new_id
from tests.api.agent_reports import conversation_report
from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.engine import TINY_IMAGE
from tests.services.private_engine import PrivateEngine
from tests.waiting import eventually


@pytest.fixture
def service(installed: Deployment) -> Deployment:
    installed.prepare(TINY_IMAGE)
    installed.start()
    return installed


def start(alice: Client, **own: Any) -> str:
    """Start a sandbox with its own deadlines, and wait until it runs."""
    response = alice.post("/api/v1/sandboxes", json=own)
    assert response.status_code == 200, response.text
    sandbox_id = str(response.json()["id"])
    alice.await_sandbox(sandbox_id, "RUNNING")
    return sandbox_id


def change(alice: Client, sandbox_id: str, **own: Any) -> dict[str, Any]:
    response = alice.patch(f"/api/v1/sandboxes/{sandbox_id}", json=own)
    assert response.status_code == 200, response.text
    shown: dict[str, Any] = response.json()
    return shown


def await_state(engine: PrivateEngine, sandbox_id: str, state: str) -> None:
    eventually(lambda: engine.docker("inspect", "--format", "{{.State.Status}}", f"aw-{sandbox_id}").strip() == state)


def history(alice: Client, sandbox_id: str) -> list[tuple[str, str | None]]:
    moves = alice.read(f"/api/v1/sandboxes/{sandbox_id}/transitions")
    return [(move["pause_kind"] or move["to_status"], move["reason"]) for move in moves]


def test_idle_sandbox_is_paused_stopped_and_deleted(alice: Client, engine: PrivateEngine) -> None:
    sandbox_id = start(alice, freeze_after_seconds=1)
    container = f"aw-{sandbox_id}"
    await_state(engine, sandbox_id, "paused")
    assert alice.await_sandbox(sandbox_id, "PAUSED")["next_deadline"] is None

    change(alice, sandbox_id, freeze_after_seconds="never", stop_after_seconds=1)
    await_state(engine, sandbox_id, "exited")
    eventually(lambda: history(alice, sandbox_id)[-1] == ("STOPPED", "idle_stopped"))
    assert alice.await_sandbox(sandbox_id, "PAUSED")["reason"] == "idle_stopped"

    change(alice, sandbox_id, stop_after_seconds="never")
    assert alice.post(f"/api/v1/sandboxes/{sandbox_id}/resume").status_code == 200
    alice.await_sandbox(sandbox_id, "RUNNING")
    engine.docker("exec", container, "touch", "/workspace/kept")
    assert alice.post(f"/api/v1/sandboxes/{sandbox_id}/pause", params={"kind": "stopped"}).status_code == 200
    await_state(engine, sandbox_id, "exited")
    alice.await_sandbox(sandbox_id, "PAUSED")  # an earlier resume would still see it RUNNING in the store
    assert alice.post(f"/api/v1/sandboxes/{sandbox_id}/resume").status_code == 200
    alice.await_sandbox(sandbox_id, "RUNNING")
    engine.docker("exec", container, "test", "-e", "/workspace/kept")

    change(alice, sandbox_id, freeze_after_seconds=1, stop_after_seconds=1, delete_after_seconds=1)
    eventually(lambda: engine.containers() == [] and engine.volumes() == [], deadline_seconds=180)
    assert alice.sandbox(sandbox_id) is None
    assert alice.post(f"/api/v1/sandboxes/{sandbox_id}/resume").status_code == 404
    eventually(lambda: history(alice, sandbox_id)[-1] == ("DELETED", "idle_deleted"))
    assert history(alice, sandbox_id) == [
        ("STARTING", None),
        ("RUNNING", None),
        ("FROZEN", "idle_frozen"),
        ("STOPPED", "idle_stopped"),
        ("STARTING", None),
        ("RUNNING", None),
        ("STOPPED", None),
        ("STARTING", None),
        ("RUNNING", None),
        ("FROZEN", "idle_frozen"),
        ("STOPPED", "idle_stopped"),
        ("DELETING", "idle_deleted"),
        ("DELETED", "idle_deleted"),
    ]


@pytest.mark.nightly  # tests of deadlines cover this for each change
def test_activity_postpones_the_deadline(alice: Client) -> None:
    sandbox_id = start(alice, freeze_after_seconds=6)
    found = alice.sandbox(sandbox_id)
    assert found is not None
    first = datetime.fromisoformat(found["next_deadline"]["at"])
    report = conversation_report(new_id())
    key = {"X-Session-API-Key": found["session_api_key"]}

    def prolonged() -> bool:
        """Report, and return whether the activity was recorded: a report soon after the last one is not."""
        assert alice.post("/api/v1/webhooks/conversations", json=report, headers=key).status_code == 200
        shown = alice.sandbox(sandbox_id)
        assert shown is not None
        return bool(datetime.fromisoformat(shown["last_active_at"]) > datetime.fromisoformat(found["last_active_at"]))

    eventually(prolonged)
    paused = alice.await_sandbox(sandbox_id, "PAUSED")
    [pause] = [move for move in alice.read(f"/api/v1/sandboxes/{sandbox_id}/transitions") if move["pause_kind"]]
    used = datetime.fromisoformat(paused["last_active_at"])
    assert (datetime.fromisoformat(pause["at"]) - used).total_seconds() >= 6
    assert datetime.fromisoformat(pause["at"]) > first


@pytest.mark.nightly  # tests of deadlines cover this for each change
def test_deadline_applies_after_a_restart_of_the_worker(
    service: Deployment, alice: Client, engine: PrivateEngine
) -> None:
    sandbox_id = start(alice, max_age_seconds=3600)
    service.kill("worker")
    shown = change(alice, sandbox_id, freeze_after_seconds=1)
    assert shown["next_deadline"]["does"] == "freeze"
    eventually(lambda: now() > datetime.fromisoformat(shown["next_deadline"]["at"]))
    assert alice.sandbox(sandbox_id) is not None
    service.start_worker()
    await_state(engine, sandbox_id, "paused")
    assert alice.await_sandbox(sandbox_id, "PAUSED")["reason"] == "idle_frozen"
