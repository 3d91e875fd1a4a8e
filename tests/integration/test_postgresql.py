"""PostgreSQL as operators have it: without the extensions, and with a limited number of connections."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from shared.db.database import Database
from shared.db.migrations import migrate
from tests.factories import ApiUser, make_conversation, make_sandbox
from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.engine import TINY_IMAGE
from tests.services.postgres import USER, Postgres

CONCURRENCY = 6
# docs/operate/postgres-and-redis.md: an API process uses up to 20 connections, and a worker AW_CONCURRENCY plus 22.
MAX_CONNECTIONS = {"api": 20, "worker": CONCURRENCY + 22}
# A batch of requests may end before its requests overlap.
MAX_BATCHES = 6
CLIENTS = 40
EXTENSIONS = "SELECT extname FROM pg_extension WHERE extname IN ('pg_trgm', 'btree_gin')"
ROLE = "without_rights"


class TestWithoutExtensionRight:
    """A role that may create tables but no extensions, which need the right to CREATE in the database."""

    @pytest.fixture
    def database_url(self, postgres_server: Postgres) -> Iterator[str]:
        name = postgres_server.create()
        administrator = Database(postgres_server.url(name))
        with administrator.transaction() as session:
            session.connection().execute(text(f"CREATE ROLE {ROLE} LOGIN"))
            session.connection().execute(text(f"GRANT CREATE ON SCHEMA public TO {ROLE}"))
        administrator.close()
        yield postgres_server.url(name).replace(f"//{USER}@", f"//{ROLE}@")
        postgres_server.drop(name)
        administrator = Database(postgres_server.url("postgres"))
        with administrator.transaction() as session:
            session.connection().execute(text(f"DROP ROLE {ROLE}"))
        administrator.close()

    def test_titles_are_searched_without_the_extensions(
        self, database_url: str, request: pytest.FixtureRequest
    ) -> None:
        migrate(database_url)
        migrate(database_url)  # the next start succeeds as well
        database: Database = request.getfixturevalue("database")
        with database.reading() as session:
            assert session.connection().execute(text(EXTENSIONS)).all() == []
        client: TestClient = request.getfixturevalue("client")
        user: ApiUser = request.getfixturevalue("user")
        sandbox = make_sandbox(database, user)
        for title in ("A walk in the woods", "100% wool", "Wool and water"):
            make_conversation(database, user, sandbox, title=title)
        found = {wanted: titles(client, user, wanted) for wanted in ("WOOL", "0% w", "oo", "nothing")}
        assert found == {
            "WOOL": ["100% wool", "Wool and water"],
            "0% w": ["100% wool"],
            "oo": ["100% wool", "A walk in the woods", "Wool and water"],
            "nothing": [],
        }


def titles(client: TestClient, user: ApiUser, wanted: str) -> list[str]:
    response = client.get("/api/v1/app-conversations/search", params={"title__contains": wanted}, headers=user.headers)
    assert response.status_code == 200, response.text
    return sorted(item["title"] for item in response.json()["items"])


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_connections_stay_within_their_limits_under_load(
    installed: Deployment, database_url: str, postgres_server: Postgres
) -> None:
    installed.prepare(TINY_IMAGE)
    installed.environment["AW_CONCURRENCY"] = str(CONCURRENCY)
    # The names let the server distinguish the connections.
    installed.start_api(AW_DATABASE_URL=f"{database_url}&application_name=api")
    installed.start_worker(AW_DATABASE_URL=f"{database_url}&application_name=worker")
    with installed.user("alice") as alice, counted(postgres_server) as peaks, ThreadPoolExecutor(CLIENTS) as pool:
        started, statuses = list[str](), Counter[int]()
        for number in range(MAX_BATCHES):
            started += pool.map(lambda _: alice.start_sandbox(), range(2 * CONCURRENCY))
            requests = range(CLIENTS * 12 * number, CLIENTS * 12 * (number + 1))
            statuses += Counter(pool.map(partial(send, alice, started), requests))
            if is_loaded(peaks):
                break
        for sandbox_id in started:
            alice.await_sandbox(sandbox_id, "RUNNING")
    assert set(statuses) == {200}
    assert is_loaded(peaks), peaks
    assert {name: peaks[name] for name in MAX_CONNECTIONS if peaks[name] > MAX_CONNECTIONS[name]} == {}


def is_loaded(peaks: Counter[str]) -> bool:
    """Whether the load was high: over half of the API's limit, and over `CONCURRENCY` connections of the worker."""
    return peaks["api"] > MAX_CONNECTIONS["api"] / 2 and peaks["worker"] > CONCURRENCY


def send(alice: Client, started: list[str], number: int) -> int:
    """Send one of four kinds of requests, each with new parameters."""
    match number % 4:
        case 0:
            return alice.post("/api/settings", json={"language": f"l{number}"}).status_code
        case 1:
            return alice.get("/api/v1/sandboxes/search", params={"limit": 1 + number % 100}).status_code
        case 2:
            return alice.get(f"/api/v1/sandboxes/{started[number % len(started)]}").status_code
    return alice.get("/api/v1/app-conversations/search", params={"title__contains": str(number)}).status_code


@contextmanager
def counted(server: Postgres) -> Iterator[Counter[str]]:
    """The peak number of connections of each application."""
    peaks, ended = Counter[str](), threading.Event()
    database = Database(server.url("postgres"))

    def count() -> None:
        statement = text("SELECT application_name, count(*) FROM pg_stat_activity GROUP BY 1")
        while not ended.wait(0.02):
            with database.reading() as session:
                for name, number in session.connection().execute(statement).all():
                    peaks[name] = max(peaks[name], number)

    counter = threading.Thread(target=count)
    counter.start()
    try:
        yield peaks
    finally:
        ended.set()
        counter.join()
        database.close()
