"""Resumes of sandboxes in ERROR: clients that poll the status give up at ERROR, so STARTING is shown immediately."""

from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlmodel import col, select

from api.app import create_app
from api.request.context import Context
from shared.clock import after
from shared.db.database import Database
from shared.models import ChangeEntry
from shared.states import Reason, Status
from tests.api.responses import get_json
from tests.factories import ApiUser, make_sandbox

PATH = "/api/v1/sandboxes"


@pytest.fixture(params=[{}, {"quota_running": 5}], ids=["without-quotas", "with-quotas"])
def client(context: Context, request: pytest.FixtureRequest) -> TestClient:
    settings = context.settings.model_copy(update=request.param)
    return TestClient(create_app(replace(context, settings=settings)))


def shown_after_resume(client: TestClient, user: ApiUser, sandbox_id: str) -> tuple[dict[str, Any], list[Any]]:
    """The sandbox, and the states of its history from the resume on."""
    resumed = client.post(f"{PATH}/{sandbox_id}/resume", headers=user.headers)
    assert resumed.status_code == 200
    path = f"{PATH}/{sandbox_id}"
    moves = get_json(path, client, user, "/transitions")
    return get_json(path, client, user), [(move["from_status"], move["to_status"]) for move in moves]


def test_resumed_sandbox_in_error_is_starting(client: TestClient, user: ApiUser, database: Database) -> None:
    sandbox = make_sandbox(database, user, status=Status.ERROR)
    shown, moves = shown_after_resume(client, user, sandbox.id)
    assert (shown["status"], shown["reason"], shown["detail"]) == ("STARTING", None, None)
    assert moves == [("ERROR", "STARTING")]
    [listed] = get_json(PATH, client, user, "/search", status__eq="STARTING")["items"]
    assert listed["id"] == sandbox.id
    with database.reading() as session:
        entries = session.exec(select(ChangeEntry.status).order_by(col(ChangeEntry.number))).all()
    assert entries[-1] == "STARTING"


@pytest.mark.parametrize(
    "columns",
    [
        # It starts once it fails over, or its node is back.
        {"reason": Reason.NODE_LOST},
        # A worker that has the lease knows the row as it was, and writes STARTING itself.
        {"lease_owner": "worker", "lease_until": after(60)},
    ],
    ids=["node-lost", "leased"],
)
def test_sandbox_that_a_worker_must_observe_first_stays_in_error(
    client: TestClient, user: ApiUser, database: Database, columns: dict[str, Any]
) -> None:
    sandbox = make_sandbox(database, user, status=Status.ERROR, **columns)
    shown, moves = shown_after_resume(client, user, sandbox.id)
    assert (shown["status"], moves) == ("ERROR", [])
