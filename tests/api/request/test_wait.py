"""`?wait=seconds` and `Prefer: wait=seconds`: when the answer comes, what it is, and what is no number of seconds."""

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
from tests.factories import Person, make_node, make_sandbox, make_spec
from tests.fakes.worker import settle
from tests.waiting import eventually

SANDBOXES = "/api/v1/sandboxes"
CONVERSATIONS = "/api/v1/app-conversations"
URLS = [{"name": "AGENT_SERVER", "url": "http://127.0.0.1:18000", "port": 8000}]
RUNNING = ObservedState(Status.RUNNING, exposed_urls=URLS)
PAUSED = ObservedState(Status.PAUSED, pause_kind=PauseKind.FROZEN)
MORE_THAN_A_ROUND = {"wait": 20}


@pytest.fixture
def client(context: Context, database: Database) -> Iterator[TestClient]:
    """A client of an application that looks again very often: nobody tells it anything."""
    make_spec(database)
    make_node(database)
    waiting = replace(context, waiter=CompletionWaiter(database, PollIntervals(blind=0.05)))
    with TestClient(create_app(waiting), raise_server_exceptions=False) as client:
        yield client


def wish(database: Database, sandbox_id: str, desired: Desired) -> None:
    with database.transaction() as session:
        desired_state.set_desired(session, session.get_one(Sandbox, sandbox_id), desired, due_at=now())


@pytest.fixture
def execute_and_commit(database: Database, publisher: RecordingPublisher) -> Iterator[Callable[..., None]]:
    """Carries out the next wish that is published, with these facts, in a thread of its own."""
    threads: list[threading.Thread] = []

    def execute_and_commit(*facts: ObservedState, desired: Desired | None = None) -> None:
        def work() -> None:
            [job] = eventually(lambda: publisher.jobs)
            if desired is not None:
                wish(database, job.subject, desired)
            settle(database, job.subject, *facts)

        threads.append(threading.Thread(target=work))
        threads[-1].start()

    yield execute_and_commit
    for thread in threads:
        thread.join()


def post(client: TestClient, user: Person, path: str, **options: Any) -> Any:
    headers = user.headers | options.pop("headers", {})
    return client.request(options.pop("method", "POST"), path, headers=headers, **options)


class TestAnswers:
    def test_start_answers_running(
        self, client: TestClient, user: Person, execute_and_commit: Callable[..., None]
    ) -> None:
        execute_and_commit(RUNNING)
        answer = post(client, user, SANDBOXES, params=MORE_THAN_A_ROUND)
        shown = answer.json()
        assert (answer.status_code, answer.headers["Operation-Settled"]) == (200, "true")
        assert (shown["status"], shown["exposed_urls"], bool(shown["session_api_key"])) == ("RUNNING", URLS, True)
        assert shown == client.get(f"{SANDBOXES}/{shown['id']}", headers=user.headers).json()

    def test_start_that_failed_says_so(
        self, client: TestClient, user: Person, execute_and_commit: Callable[..., None]
    ) -> None:
        execute_and_commit(ObservedState(Status.ERROR, detail="no such image"))
        answer = post(client, user, SANDBOXES, params=MORE_THAN_A_ROUND)
        assert (answer.json()["status"], answer.json()["detail"]) == ("ERROR", "no such image")

    def test_pause_is_settled_before_the_answer(
        self, client: TestClient, user: Person, database: Database, execute_and_commit: Callable[..., None]
    ) -> None:
        sandbox = make_sandbox(database, user)
        execute_and_commit(PAUSED)
        answer = post(client, user, f"{SANDBOXES}/{sandbox.id}/pause", headers={"Prefer": "respond-async, wait=20"})
        assert (answer.json(), answer.headers["Preference-Applied"]) == ({"success": True}, "wait=20")
        assert client.get(f"{SANDBOXES}/{sandbox.id}", headers=user.headers).json()["status"] == "PAUSED"

    def test_delete_answers_when_it_is_gone(
        self, client: TestClient, user: Person, database: Database, execute_and_commit: Callable[..., None]
    ) -> None:
        sandbox = make_sandbox(database, user)
        execute_and_commit(ObservedState(Status.DELETING), ObservedState(Status.DELETED))
        answer = post(client, user, f"{SANDBOXES}/{sandbox.id}", method="DELETE", params=MORE_THAN_A_ROUND)
        assert (answer.json(), answer.headers["Operation-Settled"]) == ({"success": True}, "true")
        assert status_of(database, sandbox.id) == Status.DELETED

    def test_time_that_is_up_shows_what_is_so(self, client: TestClient, user: Person) -> None:
        answer = post(client, user, SANDBOXES, params={"wait": 0.01})
        assert (answer.json()["status"], answer.headers["Operation-Settled"]) == ("STARTING", "false")
        assert answer.json()["session_api_key"] is None

    def test_broker_that_stalls_is_not_waited_for(self, context: Context, database: Database, user: Person) -> None:
        make_spec(database)
        publisher = StalledPublisher()
        waiter = Waking(database, publisher.woken)
        with TestClient(create_app(replace(context, publisher=publisher, waiter=waiter))) as client:
            assert post(client, user, SANDBOXES, params={"wait": 0.01}).json()["status"] == "STARTING"
        assert publisher.was_woken

    def test_request_without_wait_is_answered_at_once(
        self, client: TestClient, user: Person, publisher: RecordingPublisher
    ) -> None:
        for options in ({}, {"params": {"wait": 0}}, {"headers": {"Prefer": "return=minimal"}}):
            answer = post(client, user, SANDBOXES, **options)
            assert (answer.json()["status"], "Operation-Settled" in answer.headers) == ("STARTING", False)
        assert len(publisher.jobs) == 3

    def test_sandbox_that_is_deleted_meanwhile_is_answered_as_it_was(
        self, client: TestClient, user: Person, database: Database, execute_and_commit: Callable[..., None]
    ) -> None:
        execute_and_commit(ObservedState(Status.DELETING), ObservedState(Status.DELETED), desired=Desired.DELETED)
        answer = post(client, user, SANDBOXES, params=MORE_THAN_A_ROUND)
        said = (answer.status_code, answer.json()["status"], answer.headers["Operation-Settled"])
        assert said == (200, "STARTING", "superseded")

    @pytest.mark.parametrize("path", ["pause", "pause?kind=stopped", "resume"])
    def test_a_wait_that_another_command_supersedes_says_so(
        self, client: TestClient, user: Person, database: Database, publisher: RecordingPublisher, path: str
    ) -> None:
        sandbox = make_sandbox(database, user)
        other = Desired.PAUSED if path == "resume" else Desired.RUNNING

        def supersede() -> None:
            eventually(lambda: publisher.jobs)
            wish(database, sandbox.id, other)  # and no worker answers

        thread = threading.Thread(target=supersede)
        thread.start()
        answer = post(client, user, f"{SANDBOXES}/{sandbox.id}/{path}", headers={"Prefer": "wait=20"})
        thread.join()
        assert (answer.status_code, answer.headers["Operation-Settled"]) == (200, "superseded")

    def test_a_wait_whose_command_is_only_repeated_is_settled(
        self, client: TestClient, user: Person, database: Database, execute_and_commit: Callable[..., None]
    ) -> None:
        sandbox = make_sandbox(database, user)
        execute_and_commit(PAUSED, desired=Desired.PAUSED)
        answer = post(client, user, f"{SANDBOXES}/{sandbox.id}/pause", headers={"Prefer": "wait=20"})
        assert answer.headers["Operation-Settled"] == "true"


class StalledPublisher(RecordingPublisher):
    """Takes its time until it is woken."""

    def __init__(self) -> None:
        super().__init__()
        self.woken = threading.Event()
        self.was_woken = False

    def publish(self, *jobs: Job) -> None:
        self.was_woken = self.woken.wait(20)


class Waking(CompletionWaiter):
    """Wakes the publisher when a wait is over."""

    def __init__(self, database: Database, woken: threading.Event) -> None:
        super().__init__(database)
        self._woken = woken

    async def settle(self, awaited_row: AwaitedRow, seconds: float) -> bool:
        settled = await super().settle(awaited_row, seconds)
        self._woken.set()
        return settled


class TestConversations:
    def test_start_answers_when_it_is_final(
        self, client: TestClient, user: Person, database: Database, publisher: RecordingPublisher
    ) -> None:
        store_model(client, user)
        thread = threading.Thread(target=lambda: fail_start(database, publisher))
        thread.start()
        answer = post(client, user, CONVERSATIONS, json={}, params=MORE_THAN_A_ROUND)
        thread.join()
        assert (answer.json()["status"], answer.json()["reason"]) == ("ERROR", "clone_failed")
        assert answer.headers["Operation-Settled"] == "true"

    def test_start_that_has_failed_is_answered_at_once(self, client: TestClient, user: Person) -> None:
        answer = post(client, user, CONVERSATIONS, json={}, params=MORE_THAN_A_ROUND)
        assert (answer.json()["reason"], answer.headers["Operation-Settled"]) == ("llm_key_missing", "true")

    def test_replay_shows_the_same_task_as_it_is(self, client: TestClient, user: Person) -> None:
        store_model(client, user)
        key = {"Idempotency-Key": "one"}
        first = post(client, user, CONVERSATIONS, json={}, headers=key).json()
        again = post(client, user, CONVERSATIONS, json={}, headers=key, params={"wait": 0.01})
        assert (again.json(), again.headers["Operation-Settled"]) == (first, "false")


def store_model(client: TestClient, user: Person) -> None:
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
        self, client: TestClient, user: Person, execute_and_commit: Callable[..., None]
    ) -> None:
        key = {"Idempotency-Key": "one"}
        first = post(client, user, SANDBOXES, headers=key).json()
        execute_and_commit(RUNNING)
        again = post(client, user, SANDBOXES, headers=key | {"Prefer": "wait=20"}, params=MORE_THAN_A_ROUND)
        assert (again.json()["id"], again.json()["status"]) == (first["id"], "RUNNING")
        assert again.headers["Operation-Settled"] == "true"
        assert post(client, user, SANDBOXES, headers=key).json() == first

    def test_replay_whose_time_is_up_says_so(self, client: TestClient, user: Person) -> None:
        key = {"Idempotency-Key": "one", "Prefer": "wait=1"}
        first = post(client, user, SANDBOXES, headers=key, params={"wait": 0.01}).json()
        again = post(client, user, SANDBOXES, headers=key, params={"wait": 0.01})
        assert (again.json(), again.headers["Operation-Settled"]) == (first, "false")

    def test_kept_answer_holds_no_session_key(
        self, client: TestClient, user: Person, execute_and_commit: Callable[..., None]
    ) -> None:
        execute_and_commit(RUNNING)
        key = {"Idempotency-Key": "one"}
        post(client, user, SANDBOXES, headers=key, params=MORE_THAN_A_ROUND)
        kept = post(client, user, SANDBOXES, headers=key).json()
        assert (kept["status"], kept["session_api_key"]) == ("STARTING", None)

    def test_replay_of_a_deleted_sandbox_is_what_was_kept(
        self, client: TestClient, user: Person, database: Database
    ) -> None:
        key = {"Idempotency-Key": "one"}
        first = post(client, user, SANDBOXES, headers=key).json()
        client.delete(f"{SANDBOXES}/{first['id']}", headers=user.headers)
        settle(database, first["id"], ObservedState(Status.DELETING), ObservedState(Status.DELETED))
        assert post(client, user, SANDBOXES, headers=key, params=MORE_THAN_A_ROUND).json() == first


class TestRefusals:
    @pytest.mark.parametrize("wait", ["-1", "61", "soon", "nan", "inf", ""])
    def test_wrong_wait_in_the_query_is_refused(
        self, client: TestClient, user: Person, database: Database, wait: str
    ) -> None:
        refused = post(client, user, SANDBOXES, params={"wait": wait})
        assert refused.status_code == 422
        assert refused.json()["detail"][0]["loc"] == ["query", "wait"]
        assert count(database) == 0

    @pytest.mark.parametrize(
        "value", ["wait=-1", "wait=61", "wait=soon", "wait", "wait=", "wait=1.5", "wait=²", 'wait="']
    )
    def test_wrong_wait_in_the_header_is_refused(
        self, client: TestClient, user: Person, database: Database, value: str
    ) -> None:
        refused = post(client, user, SANDBOXES, headers={"Prefer": value.encode()})
        assert refused.status_code == 422, refused.text
        [entry] = refused.json()["detail"]
        assert (entry["loc"], "0 to 60" in entry["msg"]) == (["header", "Prefer"], True)
        assert count(database) == 0

    def test_unknown_sandbox_is_not_waited_for(self, client: TestClient, user: Person) -> None:
        assert post(client, user, f"{SANDBOXES}/{'0' * 32}/pause", params=MORE_THAN_A_ROUND).status_code == 404


@pytest.mark.parametrize("value", ['Wait="0"', "wait = 0 ; x=y", "handling=lenient,WAIT=0, wait=7"])
def test_preferences_are_read_as_they_may_be_written(client: TestClient, user: Person, value: str) -> None:
    assert post(client, user, SANDBOXES, headers={"Prefer": value}).headers["Preference-Applied"] == "wait=0"


def status_of(database: Database, sandbox_id: str) -> str:
    with database.reading() as session:
        return session.get_one(Sandbox, sandbox_id).status


def count(database: Database) -> int:
    with database.reading() as session:
        return len(session.exec(select(Sandbox.id)).all())
