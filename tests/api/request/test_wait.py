"""`?wait=seconds` and `Prefer: wait=seconds`: the time and content of the response, and the refused values."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlmodel import select

from api.app import create_app
from api.realtime.completion_waiter import AwaitedRow, CompletionWaiter, PollIntervals
from api.request.context import Context
from shared.clock import now
from shared.conversations import start_tasks
from shared.db.database import Database
from shared.leasing import leases
from shared.models import Sandbox, StartTask
from shared.queue.jobs import Job
from shared.sandboxes import desired_state
from shared.sandboxes.status import ObservedState
from shared.states import Desired, PauseKind, Reason, Stage, Status
from tests.doubles import RecordingPublisher
from tests.factories import ApiUser, make_node, make_sandbox, make_spec
from tests.fakes.worker import settle
from tests.waiting import eventually

SANDBOXES = "/api/v1/sandboxes"
CONVERSATIONS = "/api/v1/app-conversations"
Writes = Callable[..., None]
URLS = [{"name": "AGENT_SERVER", "url": "http://127.0.0.1:18000", "port": 8000}]
RUNNING = ObservedState(Status.RUNNING, exposed_urls=URLS)
PAUSED = ObservedState(Status.PAUSED, pause_kind=PauseKind.FROZEN)
LONG_WAIT, LONG, BLANK = {"wait": 20}, f"wait={'9' * 5000}", f'wait={" " * 30_000}x"x'


@pytest.fixture
def client(context: Context, database: Database) -> Iterator[TestClient]:
    """A client of an application that polls very often, because no notifications reach it."""
    make_spec(database)
    make_node(database)
    waiting = replace(context, waiter=CompletionWaiter(database, PollIntervals(disconnected=0.05)))
    with TestClient(create_app(waiting), raise_server_exceptions=False) as client:
        yield client


def set_desired(database: Database, sandbox_id: str, desired: Desired) -> None:
    with database.transaction() as session:
        desired_state.set_desired(session, session.get_one(Sandbox, sandbox_id), desired, due_at=now())


@pytest.fixture
def worker_writes(database: Database, publisher: RecordingPublisher) -> Iterator[Writes]:
    """Return a function that writes observed states for the next published job, in a separate thread."""
    threads: list[threading.Thread] = []

    def execute(*observed: ObservedState, desired: Desired | None = None) -> None:
        def work() -> None:
            [job] = eventually(lambda: publisher.jobs)
            if desired is not None:
                set_desired(database, job.subject, desired)
            settle(database, job.subject, *observed)

        threads.append(threading.Thread(target=work))
        threads[-1].start()

    yield execute
    for thread in threads:
        thread.join()


def post(client: TestClient, user: ApiUser, path: str, **options: Any) -> Any:
    headers = user.headers | options.pop("headers", {})
    return client.request(options.pop("method", "POST"), path, headers=headers, **options)


class TestResponses:
    def test_start_returns_running(self, client: TestClient, user: ApiUser, worker_writes: Writes) -> None:
        worker_writes(RUNNING)
        response = post(client, user, SANDBOXES, params=LONG_WAIT)
        shown = response.json()
        assert (response.status_code, response.headers["Operation-Settled"]) == (200, "true")
        assert (shown["status"], len(shown["exposed_urls"]), bool(shown["session_api_key"])) == ("RUNNING", 1, True)
        assert shown == client.get(f"{SANDBOXES}/{shown['id']}", headers=user.headers).json()

    def test_failed_start_is_shown_in_error(self, client: TestClient, user: ApiUser, worker_writes: Writes) -> None:
        worker_writes(ObservedState(Status.ERROR, detail="no such image"))
        response = post(client, user, SANDBOXES, params=LONG_WAIT)
        assert (response.json()["status"], response.json()["detail"]) == ("ERROR", "no such image")

    def test_pause_completes_before_the_response(
        self, client: TestClient, user: ApiUser, database: Database, worker_writes: Writes
    ) -> None:
        sandbox = make_sandbox(database, user)
        worker_writes(PAUSED)
        response = post(client, user, f"{SANDBOXES}/{sandbox.id}/pause", headers={"Prefer": "respond-async, wait=20"})
        assert (response.json(), response.headers["Preference-Applied"]) == ({"success": True}, "wait=20")
        assert client.get(f"{SANDBOXES}/{sandbox.id}", headers=user.headers).json()["status"] == "PAUSED"

    def test_delete_returns_when_the_sandbox_is_deleted(
        self, client: TestClient, user: ApiUser, database: Database, worker_writes: Writes
    ) -> None:
        sandbox = make_sandbox(database, user)
        worker_writes(ObservedState(Status.DELETING), ObservedState(Status.DELETED))
        response = post(client, user, f"{SANDBOXES}/{sandbox.id}", method="DELETE", params=LONG_WAIT)
        assert (response.json(), response.headers["Operation-Settled"]) == ({"success": True}, "true")
        with database.reading() as session:
            assert session.get_one(Sandbox, sandbox.id).status == Status.DELETED

    def test_timeout_returns_the_current_state(self, client: TestClient, user: ApiUser) -> None:
        response = post(client, user, SANDBOXES, params={"wait": 0.01})
        assert (response.json()["status"], response.headers["Operation-Settled"]) == ("STARTING", "false")
        assert response.json()["session_api_key"] is None

    def test_stalled_broker_does_not_delay_the_wait(self, context: Context, database: Database, user: ApiUser) -> None:
        make_spec(database)
        publisher = StalledPublisher()
        waiter = ReleasingWaiter(database, publisher.released)
        with TestClient(create_app(replace(context, publisher=publisher, waiter=waiter))) as client:
            assert post(client, user, SANDBOXES, params={"wait": 0.01}).json()["status"] == "STARTING"
        assert publisher.was_released

    def test_request_without_wait_returns_immediately(
        self, client: TestClient, user: ApiUser, publisher: RecordingPublisher
    ) -> None:
        for options in ({}, {"params": {"wait": 0}, "headers": {"Prefer": "wait=1"}}, {"headers": {"Prefer": "a=b"}}):
            response = post(client, user, SANDBOXES, **options)
            assert (response.json()["status"], "Operation-Settled" in response.headers) == ("STARTING", False)
        assert len(publisher.jobs) == 3

    def test_sandbox_deleted_during_the_wait_is_shown_as_committed(
        self, client: TestClient, user: ApiUser, database: Database, worker_writes: Writes
    ) -> None:
        worker_writes(ObservedState(Status.DELETING), ObservedState(Status.DELETED), desired=Desired.DELETED)
        response = post(client, user, SANDBOXES, params=LONG_WAIT)
        shown = (response.status_code, response.json()["status"], response.headers["Operation-Settled"])
        assert shown == (200, "STARTING", "superseded")

    @pytest.mark.parametrize("path", ["pause", "pause?kind=stopped", "resume"])
    def test_wait_reports_another_command_as_superseding(
        self, client: TestClient, user: ApiUser, database: Database, publisher: RecordingPublisher, path: str
    ) -> None:
        sandbox = make_sandbox(database, user)
        other = Desired.PAUSED if path == "resume" else Desired.RUNNING

        def supersede() -> None:
            eventually(lambda: publisher.jobs)
            set_desired(database, sandbox.id, other)  # and no worker observes it

        thread = threading.Thread(target=supersede)
        thread.start()
        response = post(client, user, f"{SANDBOXES}/{sandbox.id}/{path}", headers={"Prefer": "wait=20"})
        thread.join()
        assert (response.status_code, response.headers["Operation-Settled"]) == (200, "superseded")

    def test_wait_completes_when_its_command_is_only_repeated(
        self, client: TestClient, user: ApiUser, database: Database, worker_writes: Writes
    ) -> None:
        sandbox = make_sandbox(database, user)
        worker_writes(PAUSED, desired=Desired.PAUSED)
        response = post(client, user, f"{SANDBOXES}/{sandbox.id}/pause", headers={"Prefer": "wait=20"})
        assert response.headers["Operation-Settled"] == "true"


class StalledPublisher(RecordingPublisher):
    """Blocks in `publish` until `released` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()
        self.was_released = False

    def publish(self, *jobs: Job) -> None:
        self.was_released = self.released.wait(20)


class ReleasingWaiter(CompletionWaiter):
    """Releases the publisher when a wait ends."""

    def __init__(self, database: Database, released: threading.Event) -> None:
        super().__init__(database)
        self._released = released

    async def settle(self, awaited_row: AwaitedRow, seconds: float) -> bool:
        is_complete = await super().settle(awaited_row, seconds)
        self._released.set()
        return is_complete


class TestConversations:
    def test_start_task_returns_when_it_is_final(
        self, client: TestClient, user: ApiUser, database: Database, publisher: RecordingPublisher
    ) -> None:
        store_model(client, user)
        thread = threading.Thread(target=lambda: fail_start(database, publisher))
        thread.start()
        response = post(client, user, CONVERSATIONS, json={}, params=LONG_WAIT)
        thread.join()
        assert (response.json()["status"], response.json()["reason"]) == ("ERROR", "clone_failed")
        assert response.headers["Operation-Settled"] == "true"

    def test_failed_start_task_returns_immediately(self, client: TestClient, user: ApiUser) -> None:
        response = post(client, user, CONVERSATIONS, json={}, params=LONG_WAIT)
        assert (response.json()["reason"], response.headers["Operation-Settled"]) == ("llm_key_missing", "true")

    def test_replay_shows_the_current_state_of_the_same_task(self, client: TestClient, user: ApiUser) -> None:
        store_model(client, user)
        key = {"Idempotency-Key": "one"}
        first = post(client, user, CONVERSATIONS, json={}, headers=key).json()
        replay = post(client, user, CONVERSATIONS, json={}, headers=key, params={"wait": 0.01})
        assert (replay.json(), replay.headers["Operation-Settled"]) == (first, "false")


def store_model(client: TestClient, user: ApiUser) -> None:
    stored = post(client, user, "/api/settings", json={"llm_model": "openai/none", "llm_api_key": "k"})
    assert stored.status_code == 200


def fail_start(database: Database, publisher: RecordingPublisher) -> None:
    [*_, job] = eventually(lambda: publisher.jobs)
    with database.transaction() as session:
        task = leases.claim(session, StartTask, job.subject, "worker", 5)
        assert task is not None
        start_tasks.advance(session, task, Stage.ERROR, reason=Reason.CLONE_FAILED)


class TestIdempotencyKeys:
    def test_replay_waits_too_and_shows_the_same_sandbox(
        self, client: TestClient, user: ApiUser, worker_writes: Writes
    ) -> None:
        key = {"Idempotency-Key": "one"}
        first = post(client, user, SANDBOXES, headers=key).json()
        worker_writes(RUNNING)
        replay = post(client, user, SANDBOXES, headers=key | {"Prefer": "wait=20"}, params=LONG_WAIT)
        assert (replay.json()["id"], replay.json()["status"]) == (first["id"], "RUNNING")
        assert replay.headers["Operation-Settled"] == "true"
        assert post(client, user, SANDBOXES, headers=key).json() == first

    def test_replay_reports_a_timeout(self, client: TestClient, user: ApiUser) -> None:
        key = {"Idempotency-Key": "one", "Prefer": "wait=1"}
        first = post(client, user, SANDBOXES, headers=key, params={"wait": 0.01}).json()
        replay = post(client, user, SANDBOXES, headers=key, params={"wait": 0.01})
        assert (replay.json(), replay.headers["Operation-Settled"]) == (first, "false")

    def test_stored_response_holds_no_session_key(
        self, client: TestClient, user: ApiUser, worker_writes: Writes
    ) -> None:
        worker_writes(RUNNING)
        key = {"Idempotency-Key": "one"}
        post(client, user, SANDBOXES, headers=key, params=LONG_WAIT)
        replay = post(client, user, SANDBOXES, headers=key).json()
        assert (replay["status"], replay["session_api_key"]) == ("STARTING", None)

    def test_replay_of_a_deleted_sandbox_is_the_stored_response(
        self, client: TestClient, user: ApiUser, database: Database
    ) -> None:
        key = {"Idempotency-Key": "one"}
        first = post(client, user, SANDBOXES, headers=key).json()
        client.delete(f"{SANDBOXES}/{first['id']}", headers=user.headers)
        settle(database, first["id"], ObservedState(Status.DELETING), ObservedState(Status.DELETED))
        assert post(client, user, SANDBOXES, headers=key, params=LONG_WAIT).json() == first


class TestInvalidWaits:
    @pytest.mark.parametrize("wait", ["-1", "61", "soon", "nan", "inf", ""])
    def test_wrong_wait_in_the_query_is_refused(
        self, client: TestClient, user: ApiUser, database: Database, wait: str
    ) -> None:
        refused = post(client, user, SANDBOXES, params={"wait": wait})
        assert refused.status_code == 422
        assert refused.json()["detail"][0]["loc"] == ["query", "wait"]
        assert count(database) == 0

    @pytest.mark.parametrize(
        "value",
        ["wait=-1", "wait=61", "wait=soon", "wait", "wait=", "wait=1.5", "wait=²", 'wait="', LONG, BLANK],
        ids=lambda value: value[:10],
    )
    def test_wrong_wait_in_the_header_is_refused(
        self, client: TestClient, user: ApiUser, database: Database, value: str
    ) -> None:
        refused = post(client, user, SANDBOXES, headers={"Prefer": value.encode()})
        assert refused.status_code == 422, refused.text
        [entry] = refused.json()["detail"]
        assert (entry["loc"], "0 to 60" in entry["msg"]) == (["header", "Prefer"], True)
        assert count(database) == 0

    def test_unknown_sandbox_returns_immediately(self, client: TestClient, user: ApiUser) -> None:
        assert post(client, user, f"{SANDBOXES}/{'0' * 32}/pause", params=LONG_WAIT).status_code == 404


@pytest.mark.parametrize("value", ['Wait="0"', "wait = 0 ; x=y", "handling=lenient,WAIT=0, wait=7"])
def test_preferences_are_read_in_all_their_spellings(client: TestClient, user: ApiUser, value: str) -> None:
    assert post(client, user, SANDBOXES, headers={"Prefer": value}).headers["Preference-Applied"] == "wait=0"


def count(database: Database) -> int:
    with database.reading() as session:
        return len(session.exec(select(Sandbox.id)).all())
