"""Quotas over HTTP: a refusal says what to do, and the response names the paused sandboxes."""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlmodel import SQLModel, func, select

from api.app import create_app
from api.request.context import Context
from shared.clock import now
from shared.db.database import Database
from shared.ids import new_id
from shared.models import Sandbox, StartTask
from shared.queue.jobs import PauseSandbox, ResumeSandbox, StartConversation, StartSandbox
from shared.states import Stage, Status
from tests.doubles import RecordingPublisher
from tests.factories import NODE_ID, ApiUser, make_sandbox, make_start_task
from tests.rows import as_stored

SANDBOXES = "/api/v1/sandboxes"
CONVERSATIONS = "/api/v1/app-conversations"
OLD = now() - timedelta(days=1)

Limited = Callable[..., TestClient]

pytestmark = pytest.mark.usefixtures("spec", "node", "model_key")


@pytest.fixture
def limited(context: Context) -> Iterator[Limited]:
    """A function that makes a client of an application with given quotas."""
    with ExitStack() as stack:

        def limited(**quotas: Any) -> TestClient:
            settings = context.settings.model_copy(update={f"quota_{name}": value for name, value in quotas.items()})
            app = create_app(replace(context, settings=settings))
            return stack.enter_context(TestClient(app, raise_server_exceptions=False))

        yield limited


def _count(database: Database, table: type[SQLModel]) -> int:
    with database.reading() as session:
        return session.exec(select(func.count()).select_from(table)).one()


@pytest.mark.parametrize("path", [SANDBOXES, CONVERSATIONS])
@pytest.mark.parametrize("quota", ["running", "sandboxes", "creates_per_minute"])
def test_quota_error_says_what_to_do(
    limited: Limited, user: ApiUser, database: Database, publisher: RecordingPublisher, path: str, quota: str
) -> None:
    client = limited(**{quota: 2})
    made = [client.post(path, json={}, headers=user.headers).status_code for _ in range(2)]
    tasks, jobs = _count(database, StartTask), list(publisher.jobs)
    refused = client.post(path, json={}, headers=user.headers)
    assert (made, refused.status_code) == ([200, 200], 429)
    detail = refused.json()["detail"]
    assert [part for part in (f"AW_QUOTA_{quota.upper()}", "quota of 2", "retry") if part not in detail] == []
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert (_count(database, Sandbox), _count(database, StartTask), publisher.jobs) == (2, tasks, jobs)


def test_resume_over_the_quota_is_refused(limited: Limited, user: ApiUser, database: Database) -> None:
    awake, asleep = make_sandbox(database, user), make_sandbox(database, user, status=Status.PAUSED)
    client = limited(running=1)
    assert client.post(f"{SANDBOXES}/{asleep.id}/resume", headers=user.headers).status_code == 429
    assert client.post(f"{SANDBOXES}/{awake.id}/resume", headers=user.headers).status_code == 200
    assert as_stored(database, asleep).generation == asleep.generation


def test_start_in_a_paused_sandbox_over_the_quota_is_refused(
    limited: Limited, user: ApiUser, database: Database
) -> None:
    awake, asleep = make_sandbox(database, user), make_sandbox(database, user, status=Status.PAUSED)
    client = limited(running=1)
    for sandbox, status in ((asleep, 429), (awake, 200)):
        response = client.post(CONVERSATIONS, json={"sandbox_id": sandbox.id}, headers=user.headers)
        assert response.status_code == status
    assert _count(database, StartTask) == 1


def test_repeated_start_takes_no_quota(limited: Limited, user: ApiUser) -> None:
    client, requested = limited(running=1), {"conversation_id": new_id()}
    keyed = user.headers | {"Idempotency-Key": "a"}
    responses = [client.post(CONVERSATIONS, json=requested, headers=one) for one in (user.headers, keyed, keyed)]
    assert [response.status_code for response in responses] == [200, 200, 200]
    assert len({response.json()["id"] for response in responses}) == 1


def test_error_is_not_stored_for_the_key(limited: Limited, user: ApiUser, database: Database) -> None:
    sandbox, client = make_sandbox(database, user), limited(running=1)
    keyed = user.headers | {"Idempotency-Key": "a"}
    assert client.post(SANDBOXES, headers=keyed).status_code == 429
    assert client.delete(f"{SANDBOXES}/{sandbox.id}", headers=user.headers).status_code == 200
    assert client.post(SANDBOXES, headers=keyed).status_code == 200


class TestPauseOldest:
    @pytest.fixture
    def client(self, limited: Limited) -> TestClient:
        return limited(running=1, policy="pause_oldest")

    def test_create_over_the_quota_pauses_the_oldest(
        self, client: TestClient, user: ApiUser, database: Database, publisher: RecordingPublisher
    ) -> None:
        oldest = make_sandbox(database, user, created_at=OLD)
        keyed = user.headers | {"Idempotency-Key": "a"}
        shown, repeated = (client.post(SANDBOXES, headers=keyed).json() for _ in range(2))
        assert shown["paused_sandbox_ids"] == [oldest.id]
        assert repeated == shown
        assert publisher.jobs == [PauseSandbox(oldest.id, NODE_ID), StartSandbox(shown["id"], NODE_ID)]
        paused = as_stored(database, oldest)
        assert (paused.desired, paused.generation, paused.due_at is not None) == ("PAUSED", 2, True)

    def test_conversation_over_the_quota_pauses_the_oldest(
        self, client: TestClient, user: ApiUser, database: Database, publisher: RecordingPublisher
    ) -> None:
        oldest = make_sandbox(database, user, created_at=OLD)
        shown = client.post(CONVERSATIONS, json={}, headers=user.headers).json()
        assert shown["paused_sandbox_ids"] == [oldest.id]
        assert [type(job) for job in publisher.jobs] == [PauseSandbox, StartSandbox, StartConversation]
        assert client.post(CONVERSATIONS, json={}, headers=user.headers).status_code == 429  # the other one is starting

    def test_resume_over_the_quota_pauses_the_oldest(
        self, client: TestClient, user: ApiUser, database: Database, publisher: RecordingPublisher
    ) -> None:
        awake, asleep = make_sandbox(database, user), make_sandbox(database, user, status=Status.PAUSED)
        response = client.post(f"{SANDBOXES}/{asleep.id}/resume", headers=user.headers)
        assert response.json() == {"success": True, "paused_sandbox_ids": [awake.id]}
        assert publisher.jobs == [PauseSandbox(awake.id, NODE_ID), ResumeSandbox(asleep.id, NODE_ID)]

    def test_sandbox_a_conversation_starts_in_is_not_paused(
        self, client: TestClient, user: ApiUser, database: Database
    ) -> None:
        make_start_task(database, user, make_sandbox(database, user), stage=Stage.WAITING_FOR_SANDBOX)
        refused = client.post(SANDBOXES, headers=user.headers)
        assert refused.status_code == 429
        assert "being started" in refused.json()["detail"]


def test_concurrent_starts_never_exceed_the_quota(limited: Limited, user: ApiUser, database: Database) -> None:
    client = limited(running=5)
    paths = [SANDBOXES, CONVERSATIONS] * 30
    with ThreadPoolExecutor(8) as pool:
        responses = pool.map(lambda path: client.post(path, json={}, headers=user.headers).status_code, paths)
        assert Counter(responses) == {200: 5, 429: 55}
    assert _count(database, Sandbox) == 5
