"""Cancelling a start marks its row, at any stage before the final ones."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.ids import new_id
from shared.models import Sandbox
from shared.queue.jobs import CancelStart
from shared.states import FINAL_STAGES, Reason, Stage
from tests.doubles import RecordingPublisher
from tests.factories import NODE_ID, ApiUser, make_start_task
from tests.rows import as_stored

PATH = "/api/v1/app-conversations/start-tasks"


def cancel(client: TestClient, user: ApiUser, task_id: str) -> Any:
    return client.post(f"{PATH}/{task_id}/cancel", headers=user.headers)


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("stage", [stage for stage in Stage if stage not in FINAL_STAGES])
def test_defect_52_unfinished_start_is_cancelled(
    client: TestClient,
    user: ApiUser,
    sandbox: Sandbox,
    database: Database,
    publisher: RecordingPublisher,
    stage: Stage,
    *,
    held: bool,
) -> None:
    task = make_start_task(
        database, user, sandbox, stage=stage, due_at=None, lease_owner="worker-1" if held else None, fence=3
    )
    response = cancel(client, user, task.id)
    assert (response.status_code, response.json()["id"], response.json()["status"]) == (200, task.id, stage)
    row = as_stored(database, task)
    assert row.cancelled_at is not None
    assert row.due_at is not None
    assert (row.stage, row.fence) == (stage, 3)  # the worker writes the stage
    assert publisher.jobs == [CancelStart(task.id, NODE_ID)]


def test_repeated_cancellation_is_idempotent(
    client: TestClient, user: ApiUser, sandbox: Sandbox, database: Database
) -> None:
    task = make_start_task(database, user, sandbox)
    assert cancel(client, user, task.id).status_code == 200
    first = as_stored(database, task).cancelled_at
    assert cancel(client, user, task.id).status_code == 200
    assert as_stored(database, task).cancelled_at == first


def test_ready_start_is_not_cancelled(client: TestClient, user: ApiUser, sandbox: Sandbox, database: Database) -> None:
    task = make_start_task(database, user, sandbox, stage=Stage.READY)
    response = cancel(client, user, task.id)
    assert response.status_code == 409
    assert f"DELETE /api/v1/app-conversations/{task.conversation_id}" in response.json()["detail"]
    assert as_stored(database, task) == task


@pytest.mark.parametrize("reason", [Reason.CANCELLED, Reason.CLONE_FAILED])
def test_start_that_has_failed_is_not_cancelled(
    client: TestClient, user: ApiUser, sandbox: Sandbox, database: Database, reason: Reason
) -> None:
    task = make_start_task(database, user, sandbox, stage=Stage.ERROR, reason=reason)
    response = cancel(client, user, task.id)
    assert (response.status_code, response.json()["status"], response.json()["reason"]) == (200, "ERROR", reason)
    assert as_stored(database, task) == task


def test_start_of_another_user_is_a_404(
    client: TestClient, user: ApiUser, other_user: ApiUser, database: Database
) -> None:
    task = make_start_task(database, other_user)
    assert cancel(client, user, task.id).status_code == 404
    assert cancel(client, user, new_id()).status_code == 404
    assert cancel(client, user, "nonsense").status_code == 400
    assert as_stored(database, task).cancelled_at is None


def test_start_without_a_sandbox_is_cancelled(client: TestClient, user: ApiUser, database: Database) -> None:
    task = make_start_task(database, user)
    assert cancel(client, user, task.id).status_code == 200
    assert as_stored(database, task).cancelled_at is not None


def test_defect_52_start_task_is_read_by_its_id(
    client: TestClient, user: ApiUser, other_user: ApiUser, database: Database
) -> None:
    task = make_start_task(database, user)
    response = client.get(f"{PATH}/{task.id}", headers=user.headers)
    assert (response.status_code, response.json()["id"]) == (200, task.id)
    assert client.get(f"{PATH}/{task.id}", headers=other_user.headers).status_code == 404
