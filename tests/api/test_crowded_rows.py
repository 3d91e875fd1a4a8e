"""More requests for a locked row than there are threads: all others go on, whoever shares the row."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.models import Sandbox
from tests.factories import NODE_ID, SPEC_ID, Person, make_node, make_person, make_sandbox, make_spec
from tests.services.foreign_locks import locked_row

# SQLite has no locks on rows.
pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)

LOCK_SECONDS = 4.0
# Far less than anybody waits for a lock; a loaded machine has 200 refusals to write meanwhile.
PROMPT_SECONDS = 2.5
REQUESTS = 200


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """The store as an API process opens it."""
    with closing(Database(database_url, lock_seconds=LOCK_SECONDS, kept_for_reading=2)) as database:
        make_spec(database)
        make_node(database, capacity=1000)
        yield database


@pytest.fixture
def third_user(database: Database) -> Person:
    """Somebody who wants nothing of what is locked."""
    return make_person(database, "carol")


def ask_all(asked: Callable[[int], Any], lock: AbstractContextManager[None], other: Any) -> Any:
    """What all requests for the locked row are answered, and how long the other person waited at most for theirs."""
    slowest: list[float] = []
    with ThreadPoolExecutor(REQUESTS) as pool, lock:
        waiting = [pool.submit(asked, number) for number in range(REQUESTS)]
        while not all(one.done() for one in waiting):
            for url, method in other:
                began = time.monotonic()
                assert method(url).status_code == 200
                slowest.append(time.monotonic() - began)
        answers = [one.result() for one in waiting]
    return answers, max(slowest)


def others_requests(client: TestClient, other: Person, theirs: Sandbox) -> Any:
    def get(url: str) -> Any:
        return client.get(url, headers=other.headers)

    def post(url: str) -> Any:
        return client.post(url, headers=other.headers)

    path = "/api/v1/sandboxes"
    found = [("/ready", get), ("/alive", get), (f"{path}/search", get), (f"{path}/{theirs.id}/pause", post)]
    for url, method in found:
        assert method(url).status_code == 200  # what is made at the first use is there
    return found


def assert_refused(answers: list[Any]) -> None:
    assert {(answer.status_code, answer.headers.get("Retry-After")) for answer in answers} == {(503, "1")}
    assert all("somebody else is changing" in answer.json()["detail"] for answer in answers)


def test_one_users_requests_take_no_threads_from_others(
    client: TestClient, database: Database, user: Person, other_user: Person
) -> None:
    mine, theirs = make_sandbox(database, user), make_sandbox(database, other_user)
    others = others_requests(client, other_user, theirs)

    def pause(_number: int) -> Any:
        return client.post(f"/api/v1/sandboxes/{mine.id}/pause", headers=user.headers)

    answers, slowest = ask_all(pause, locked_row(database, "sandbox", mine.id), others)
    assert_refused(answers)
    assert slowest < PROMPT_SECONDS


@pytest.mark.parametrize(("table", "row_id"), [("node", NODE_ID), ("sandbox_spec", SPEC_ID)])
def test_creates_take_no_slots_from_those_who_need_no_place(
    client: TestClient,
    database: Database,
    user: Person,
    other_user: Person,
    third_user: Person,
    table: str,
    row_id: str,
) -> None:
    theirs = make_sandbox(database, third_user)
    others = others_requests(client, third_user, theirs)
    users = (user, other_user)

    def create(number: int) -> Any:
        return client.post("/api/v1/sandboxes", headers=users[number % 2].headers)

    answers, slowest = ask_all(create, locked_row(database, table, row_id), others)
    assert_refused(answers)
    assert slowest < PROMPT_SECONDS


def test_many_writes_of_one_user_are_all_done_while_nothing_is_locked(client: TestClient, user: Person) -> None:
    def change(_number: int) -> int:
        answer = client.post("/api/settings", json={"language": "en"}, headers=user.headers)
        return int(answer.status_code)

    with ThreadPoolExecutor(REQUESTS) as pool:
        assert set(pool.map(change, range(REQUESTS))) == {200}
