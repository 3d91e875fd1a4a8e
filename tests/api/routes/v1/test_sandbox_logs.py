"""The logs of a sandbox's containers over HTTP: a worker reads them on request, or the API returns kept ones."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlmodel import select

from api.limits.concurrency import ConcurrencyLimit
from api.limits.process import ProcessLimits
from api.routes.v1 import sandbox_logs
from shared.clock import after
from shared.container_logs import kept_logs
from shared.container_logs.kept_logs import NO_CONTAINER, LogCause
from shared.db.database import Database
from shared.models import Node, Sandbox, SandboxLog
from shared.queue.jobs import Job, ReadLog
from shared.states import Desired, NodeStatus, Status
from tests.doubles import RecordingPublisher
from tests.factories import NODE_ID, ApiUser, make_sandbox
from tests.waiting import eventually

Handler = Callable[..., None]


def url(sandbox: Sandbox) -> str:
    return f"/api/v1/sandboxes/{sandbox.id}/logs"


def keep(
    database: Database,
    sandbox_id: str,
    *texts: str,
    name: str = "c1",
    cause: LogCause | None = None,
    age: float = 0,
) -> None:
    lines = "".join(f"2026-01-01T00:00:00.{number:09}Z {text}\n" for number, text in enumerate(texts))
    with database.transaction() as session:
        log = SandboxLog(sandbox_id=sandbox_id, owner_id="u", container_id=name, text=lines, expires_at=after(60))
        log.cause, log.read_at = cause, after(-age)
        kept_logs.keep(session, log)


def texts(shown: dict[str, Any]) -> list[list[str]]:
    return [[line["text"] for line in log["lines"]] for log in shown["containers"]]


@pytest.fixture
def worker_keeps(database: Database, publisher: RecordingPublisher) -> Iterator[Handler]:
    """A worker that stores this log for the next published job, in a separate thread."""
    threads: list[threading.Thread] = []

    def respond(*printed: str, **options: Any) -> None:
        def work() -> None:
            [job] = eventually(lambda: publisher.jobs)
            keep(database, job.subject, *printed, **options)

        threads.append(threading.Thread(target=work))
        threads[-1].start()

    yield respond
    for thread in threads:
        thread.join()


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_logs, "SECONDS", 10.0)


@pytest.fixture
def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_logs, "SECONDS", 0.1)


def test_worker_reads_the_log_for_the_request(
    client: TestClient,
    user: ApiUser,
    database: Database,
    publisher: RecordingPublisher,
    worker_keeps: Handler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sandbox_logs, "FRESH_SECONDS", 60.0)
    sandbox = make_sandbox(database, user)
    worker_keeps("one", "two")
    response = client.get(url(sandbox), headers=user.headers)
    assert (response.status_code, response.headers["Cache-Control"]) == (200, "no-store")
    shown = response.json()
    assert publisher.jobs == [ReadLog(sandbox.id, NODE_ID)]
    assert (shown["is_live"], shown["is_deleted"], texts(shown)) == (True, False, [["one", "two"]])
    [log] = shown["containers"]
    assert (log["container_id"], log["cause"], log["is_cut"]) == ("c1", None, False)
    assert shown["cursor"] == log["lines"][-1]["at"] == "2026-01-01T00:00:00.000000001Z"
    again = client.get(url(sandbox), params={"after": shown["cursor"]}, headers=user.headers).json()
    assert (again["is_live"], texts(again), again["cursor"]) == (True, [[]], shown["cursor"])
    assert len(publisher.jobs) == 1, "the reading is fresh"


@pytest.mark.usefixtures("no_worker")
def test_log_that_expires_during_the_wait_is_not_live(
    client: TestClient, user: ApiUser, database: Database, publisher: RecordingPublisher
) -> None:
    sandbox = make_sandbox(database, user)
    keep(database, sandbox.id, "one", age=60)
    keep(database, sandbox.id, "two", name="c2", age=30)

    def expire(*_jobs: Job) -> None:
        with database.transaction() as session:
            session.delete(session.exec(select(SandboxLog).where(SandboxLog.container_id == "c2")).one())

    publisher.publish = expire  # type: ignore[method-assign]
    shown = client.get(url(sandbox), headers=user.headers).json()
    assert (shown["is_live"], texts(shown)) == (False, [["one"]])


def test_worker_that_finds_no_container_ends_the_wait(
    client: TestClient, user: ApiUser, database: Database, worker_keeps: Handler
) -> None:
    sandbox = make_sandbox(database, user, status=Status.STARTING)
    worker_keeps(name=NO_CONTAINER)
    shown = client.get(url(sandbox), headers=user.headers).json()
    assert (shown["is_live"], shown["containers"], shown["cursor"]) == (True, [], None)


@pytest.mark.usefixtures("no_worker")
def test_kept_log_is_shown_if_no_worker_responds(
    client: TestClient, user: ApiUser, database: Database, publisher: RecordingPublisher
) -> None:
    sandbox = make_sandbox(database, user)
    keep(database, sandbox.id, "kept", cause=LogCause.FAILED, age=20)
    shown = client.get(url(sandbox), headers=user.headers).json()
    assert publisher.jobs
    assert (shown["is_live"], texts(shown)) == (False, [["kept"]])
    assert shown["containers"][0]["cause"] == "failed"


def test_reading_from_before_the_clock_was_set_back_is_not_live(
    client: TestClient, user: ApiUser, database: Database, worker_keeps: Handler
) -> None:
    sandbox = make_sandbox(database, user)
    keep(database, sandbox.id, "before", age=-3600)
    worker_keeps("after")
    shown = client.get(url(sandbox), headers=user.headers).json()
    assert (shown["is_live"], texts(shown)) == (True, [["after"]])


def test_log_of_a_deleted_sandbox_needs_no_worker(
    client: TestClient, user: ApiUser, database: Database, publisher: RecordingPublisher
) -> None:
    sandbox = make_sandbox(database, user, status=Status.DELETED, desired=Desired.DELETED)
    keep(database, sandbox.id, "old", name="c0", age=1, cause=LogCause.REPLACED)
    keep(database, sandbox.id, "the end", cause=LogCause.REMOVED)
    shown = client.get(url(sandbox), params={"tail": 1}, headers=user.headers).json()
    assert publisher.jobs == []
    assert (shown["is_live"], shown["is_deleted"], texts(shown)) == (False, True, [[], ["the end"]])
    assert [log["is_cut"] for log in shown["containers"]] == [True, False]


@pytest.mark.parametrize("status", [NodeStatus.LOST, NodeStatus.CORDONED])
def test_worker_of_a_lost_node_gets_no_request(
    client: TestClient, user: ApiUser, database: Database, publisher: RecordingPublisher, status: NodeStatus
) -> None:
    """A node that is lost keeps its cordon."""
    sandbox = make_sandbox(database, user)
    with database.transaction() as session:
        node = session.get_one(Node, NODE_ID)
        node.status, node.detail = status, "its worker was last heard of long ago"
    assert client.get(url(sandbox), headers=user.headers).json()["is_live"] is False
    assert publisher.jobs == []


def test_another_users_log_is_not_found(
    client: TestClient, user: ApiUser, other_user: ApiUser, database: Database, publisher: RecordingPublisher
) -> None:
    sandbox = make_sandbox(database, user)
    keep(database, sandbox.id, "private")
    response = client.get(url(sandbox), headers=other_user.headers)
    assert (response.status_code, "private" in response.text) == (404, False)
    assert client.get(url(sandbox)).status_code == 401
    assert publisher.jobs == []


def test_requests_that_wait_are_limited(client: TestClient, user: ApiUser, database: Database) -> None:
    limits: ProcessLimits = client.app.state.context.limits  # type: ignore[attr-defined]
    limits.waiting = ConcurrencyLimit("requests that wait", of_user=1, of_process=9)
    sandbox = make_sandbox(database, user)
    with limits.waiting.hold(user.id):
        response = client.get(url(sandbox), headers=user.headers)
        assert (response.status_code, response.headers["Retry-After"]) == (429, "1")


@pytest.mark.parametrize("query", [{"tail": 0}, {"tail": 1001}, {"after": "x" * 65}])
def test_invalid_query_is_a_422(client: TestClient, user: ApiUser, database: Database, query: dict[str, Any]) -> None:
    response = client.get(url(make_sandbox(database, user)), params=query, headers=user.headers)
    assert response.status_code == 422
