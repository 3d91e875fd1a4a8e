"""The sandbox that a conversation joins, also when starts, pauses and deletions run concurrently."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlmodel import Session

from shared.clock import after, now
from shared.conversations import start_tasks
from shared.conversations.start import MAX_CONVERSATIONS, StartCommand, create_start_task
from shared.db.database import Database
from shared.models import Sandbox, StartTask
from shared.sandboxes import desired_state
from shared.sandboxes import queries as sandbox_queries
from shared.states import Desired, NodeStatus, Stage, Status
from shared.users import settings_store
from tests.factories import VAULT, ApiUser, make_conversation, make_node, make_sandbox, make_start_task
from tests.interleaving import overlap
from tests.rows import as_stored


@pytest.fixture(autouse=True)
def _grouped(database: Database, user: ApiUser, other_user: ApiUser) -> None:
    grouped = {"llm_api_key": "sk-test", "sandbox_grouping_strategy": "ADD_TO_ANY"}
    for owner in (user, other_user):
        with database.transaction() as session:
            settings_store.change(session, VAULT, owner.id, grouped)


@pytest.fixture
def join(user: ApiUser) -> Callable[[Session], str | None]:
    """Return a function that starts a conversation and returns the id of its sandbox."""
    return lambda session: create_start_task(session, VAULT, StartCommand(user.id, {}, {}, after(5))).task.sandbox_id


def fill(database: Database, owner: ApiUser, sandbox: Sandbox, number: int) -> None:
    for _ in range(number):
        make_conversation(database, owner, sandbox)


def set_desired(sandbox: Sandbox, desired: Desired) -> Callable[[Session], None]:
    def act(session: Session) -> None:
        row = sandbox_queries.get(session, sandbox.id, str(sandbox.owner_id), lock=True)
        desired_state.set_desired(session, row, desired, due_at=now())

    return act


@pytest.mark.parametrize(
    "columns",
    [
        {"status": Status.STARTING},
        {"status": Status.PAUSED},
        {"status": Status.PAUSED, "desired": Desired.RUNNING},
        {"status": Status.ERROR},
        {"desired": Desired.PAUSED},
        {"desired": Desired.STOPPED},
        {"desired": Desired.DELETED},
        {"expires_at": after(-1)},
        {"spec_id": "another/image:1"},
        {"node_id": "closed"},
        {"node_id": "silent"},
    ],
)
def test_unusable_sandbox_is_not_joined(
    database: Database, user: ApiUser, join: Callable[[Session], str | None], columns: dict[str, Any]
) -> None:
    make_node(database, "closed", status=NodeStatus.CORDONED)
    make_node(database, "silent", heartbeat_at=after(-60))
    fits = make_sandbox(database, user)
    make_sandbox(database, user, **({"created_at": after(-60)} | columns))
    with database.transaction() as session:
        assert join(session) == fits.id


def test_sandbox_of_another_owner_is_not_joined(
    database: Database, other_user: ApiUser, join: Callable[[Session], str | None], client: TestClient
) -> None:
    theirs = make_sandbox(database, other_user)
    make_sandbox(database, other_user, owner_id=None, boot_key="an init key")
    with database.transaction() as session:
        made = as_stored(database, theirs).id, join(session)
    assert len(set(made)) == 2
    listed = client.get("/api/v1/sandboxes/search", headers=other_user.headers).json()["items"]
    assert [item["id"] for item in listed] == [theirs.id]


def test_deleted_conversation_and_finished_starts_free_their_places(
    database: Database, user: ApiUser, join: Callable[[Session], str | None]
) -> None:
    sandbox = make_sandbox(database, user)
    fill(database, user, sandbox, MAX_CONVERSATIONS - 1)
    make_conversation(database, user, sandbox, listed=False, deleted_at=now())
    make_start_task(database, user, sandbox, stage=Stage.READY)
    make_start_task(database, user, sandbox, stage=Stage.ERROR)
    with database.transaction() as session:
        assert [join(session) == sandbox.id for _ in range(2)] == [True, False]


def test_last_place_goes_to_one_of_two_starts(
    database: Database, user: ApiUser, join: Callable[[Session], str | None]
) -> None:
    sandbox = make_sandbox(database, user)
    fill(database, user, sandbox, MAX_CONVERSATIONS - 1)
    first, second = overlap(database, join, join)
    assert first == sandbox.id != second


def test_concurrent_starts_fill_a_sandbox_up_to_the_limit(
    client: TestClient, database: Database, user: ApiUser
) -> None:
    sandbox = make_sandbox(database, user)
    fill(database, user, sandbox, MAX_CONVERSATIONS - 3)

    def start(_: int) -> str | None:
        made = client.post("/api/v1/app-conversations", json={}, headers=user.headers).json()
        with database.reading() as session:
            return session.get_one(StartTask, made["id"]).sandbox_id

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(start, range(6))).count(sandbox.id) == 3


@pytest.mark.parametrize("desired", [Desired.PAUSED, Desired.DELETED])
def test_sandbox_that_is_being_deleted_is_not_joined(
    database: Database, user: ApiUser, join: Callable[[Session], str | None], desired: Desired
) -> None:
    leaving = make_sandbox(database, user, created_at=after(-60))
    stays = make_sandbox(database, user)
    _, joined = overlap(database, set_desired(leaving, desired), join)
    assert joined == stays.id
    assert as_stored(database, leaving).desired == desired


def test_failing_start_keeps_a_sandbox_that_another_start_joins_concurrently(
    database: Database, user: ApiUser, join: Callable[[Session], str | None]
) -> None:
    sandbox = make_sandbox(database, user)
    failing = make_start_task(database, user, sandbox, stage=Stage.PREPARING_REPOSITORY, made_sandbox=True)
    joined, _ = overlap(database, join, lambda session: start_tasks.delete_unused_sandbox(session, failing, now()))
    assert joined == sandbox.id
    assert as_stored(database, sandbox).desired == Desired.RUNNING


def test_start_joins_no_sandbox_that_a_failing_start_deletes_concurrently(
    database: Database, user: ApiUser, join: Callable[[Session], str | None]
) -> None:
    sandbox = make_sandbox(database, user)
    failing = make_start_task(database, user, sandbox, stage=Stage.PREPARING_REPOSITORY, made_sandbox=True)
    _, joined = overlap(database, lambda session: start_tasks.delete_unused_sandbox(session, failing, now()), join)
    assert joined != sandbox.id
    assert as_stored(database, sandbox).desired == Desired.DELETED
