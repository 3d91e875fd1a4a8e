"""HTTP on the sandbox path: keys, requests, responses and activity."""

import hashlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, event
from sqlmodel import col, select

from shared.clock import now
from shared.db.database import Database
from shared.models import ApiKey, Sandbox
from shared.states import Desired, Status
from tests.api.sandbox_proxy.doubles import Agent, Serve, Worker, key_of
from tests.factories import VAULT, ApiUser, make_sandbox, session_key_of
from tests.rows import as_stored
from tests.waiting import eventually

UNKNOWN_ID = "f" * 32
MEGABYTE = b"0123456789abcdef" * 65_536


class TestKeys:
    def test_sandbox_s_own_key_is_accepted(self, api: httpx.Client, running: Sandbox, agent: Agent) -> None:
        assert api.get(f"/sandbox/{running.id}/api/x", headers=key_of(running)).status_code == 200
        key = session_key_of(running)
        assert api.get(f"/sandbox/{running.id}/api/x?a=1&session_api_key={key}&b=%20").status_code == 200
        assert [got.target for got in agent.server.got] == ["/api/x", "/api/x?a=1&b=%20"]

    def test_owner_s_key_is_not_passed_on(
        self, api: httpx.Client, running: Sandbox, agent: Agent, user: ApiUser
    ) -> None:
        assert api.get(f"/sandbox/{running.id}/api/x", headers=user.headers).status_code == 200
        [got] = agent.server.got
        assert got.header("x-session-api-key") == session_key_of(running)
        assert user.key not in str(got)

    @pytest.mark.parametrize("status", [Status.RUNNING, Status.PAUSED, Status.STARTING, Status.ERROR])
    def test_callers_without_access_get_no_information_and_wake_no_sandbox(
        self, api: httpx.Client, database: Database, user: ApiUser, other_user: ApiUser, worker: Worker, status: Status
    ) -> None:
        sandbox, other = make_sandbox(database, user, status=status), make_sandbox(database, other_user)
        strangers: list[tuple[dict[str, str], int]] = [
            ({}, 401),
            ({"X-Session-API-Key": ""}, 401),
            ({"X-Session-API-Key": "aw_wrong"}, 401),
            ({"X-Session-API-Key": session_key_of(other)}, 401),
            ({"X-Session-API-Key": user.key}, 401),
            ({"Authorization": "Bearer aw_wrong"}, 401),
            ({"Authorization": f"Basic {user.key}"}, 401),
            ({"X-Session-API-Key": "aw_wrong"} | user.headers, 401),
            (other_user.headers, 404),
        ]
        for headers, expected in strangers:
            responses = [
                api.get(f"/sandbox/{one}/api/x", headers=headers) for one in (sandbox.id, UNKNOWN_ID, "a%00b", "")
            ]
            texts = {
                response.json()["detail"].replace(sandbox.id, "").replace(UNKNOWN_ID, "") for response in responses
            }
            assert ({response.status_code for response in responses}, len(texts)) == ({expected}, 1), headers
        assert (worker.jobs, as_stored(database, sandbox)) == ([], sandbox)

    def test_warm_sandbox_has_no_valid_key(self, api: httpx.Client, database: Database, running: Sandbox) -> None:
        with database.transaction() as session:
            session.get_one(Sandbox, running.id).owner_id = None
        assert api.get(f"/sandbox/{running.id}/api/x", headers=key_of(running)).status_code == 401

    def test_deleted_sandbox_is_a_404(
        self, api: httpx.Client, database: Database, user: ApiUser, running: Sandbox
    ) -> None:
        with database.transaction() as session:
            session.get_one(Sandbox, running.id).desired = Desired.DELETED
        for headers in (key_of(running), user.headers):
            assert api.get(f"/sandbox/{running.id}/api/x", headers=headers).status_code == 404

    def test_use_of_a_key_is_recorded_again(
        self, api: httpx.Client, database: Database, user: ApiUser, running: Sandbox
    ) -> None:
        with database.transaction() as session:
            key = session.exec(select(ApiKey).where(ApiKey.user_id == user.id)).one()
            key.last_used_at = before = now() - timedelta(minutes=2)
        assert api.get(f"/sandbox/{running.id}/api/x", headers=user.headers).status_code == 200
        with database.reading() as session:
            assert session.exec(select(ApiKey).where(col(ApiKey.last_used_at) > before)).all()

    def test_expired_key_is_a_401(self, api: httpx.Client, database: Database, user: ApiUser, running: Sandbox) -> None:
        assert api.get(f"/sandbox/{running.id}/api/x", headers=user.headers).status_code == 200
        with database.transaction() as session:
            key = session.exec(select(ApiKey).where(ApiKey.digest == VAULT.digest(user.key))).one()
            assert key.last_used_at is not None
            key.expires_at = now() - timedelta(seconds=1)
        assert api.get(f"/sandbox/{running.id}/api/x", headers=user.headers).status_code == 401


class TestRequest:
    @pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"])
    def test_method_arrives_unchanged(self, api: httpx.Client, running: Sandbox, agent: Agent, method: str) -> None:
        response = api.request(method, f"/sandbox/{running.id}/api/x%2Fy%0A//z?q=%C3%A9+1&&", headers=key_of(running))
        assert response.status_code == 200
        [got] = agent.server.got
        assert (got.method, got.target) == (method, "/api/x%2Fy%0A//z?q=%C3%A9+1&&")

    def test_headers_arrive_without_the_caller_s_key(self, api: httpx.Client, running: Sandbox, agent: Agent) -> None:
        sent = {
            "X-Own": "kept",
            "Connection": "keep-alive, X-Hop",
            "X-Hop": "dropped",
            "TE": "trailers",
            "Cookie": "a=b",
            "X-Forwarded-For": "1.2.3.4",
            "X-Forwarded-Prefix": "/elsewhere",
            "Forwarded": "for=1.2.3.4",
        }
        response = api.get(f"/sandbox/{running.id}/api/x", headers=key_of(running) | sent)
        [got] = agent.server.got
        names = {name for name, _ in got.headers}
        assert got.header("x-own") == "kept"
        assert names & {"x-hop", "te", "cookie", "forwarded", "connection"} == set()
        assert got.header("x-forwarded-for") == "127.0.0.1"
        assert got.header("x-forwarded-proto") == "http"
        assert got.header("x-forwarded-host") == api.base_url.netloc.decode()
        assert got.header("x-forwarded-prefix") == f"/sandbox/{running.id}"
        assert got.header("host") == agent.url.removeprefix("http://")
        assert response.headers["x-own"] == "kept"
        assert {"set-cookie", "keep-alive"} & set(response.headers) == set()
        assert response.headers["content-security-policy"] == "sandbox"

    def test_large_bodies_are_streamed(self, api: httpx.Client, running: Sandbox, agent: Agent) -> None:
        pieces = 12  # more than the API's own limit on bodies
        begun = threading.Event()

        def body() -> Iterator[bytes]:
            for number in range(pieces):
                yield MEGABYTE
                if number == 0:
                    begun.set()

        response = api.post(f"/sandbox/{running.id}/api/file/upload", headers=key_of(running), content=body())
        assert response.json()["sha"] == hashlib.sha256(MEGABYTE * pieces).hexdigest()
        sized = api.post(f"/sandbox/{running.id}/api/file/upload", headers=key_of(running), content=MEGABYTE * 5)
        assert sized.json()["sha"] == hashlib.sha256(MEGABYTE * 5).hexdigest()
        assert agent.server.got[-1].header("content-length") == str(len(MEGABYTE) * 5)

    def test_connections_are_reused(self, api: httpx.Client, running: Sandbox, agent: Agent) -> None:
        for _ in range(5):
            assert api.get(f"/sandbox/{running.id}/api/x", headers=key_of(running)).status_code == 200
        assert len(agent.server.peers) == 1

    def test_request_costs_one_query(
        self,
        api: httpx.Client,
        serve: Serve,
        running: Sandbox,
        user: ApiUser,
        statements: Callable[[], AbstractContextManager[list[str]]],
    ) -> None:
        for headers in (key_of(running), user.headers):
            api.get(f"/sandbox/{running.id}/api/x", headers=headers)  # records the key's last use
            with statements() as made:
                api.get(f"/sandbox/{running.id}/api/x", headers=headers)
            assert [statement.split()[0] for statement in made] == ["SELECT"]


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[list[str]]]:
    """Collect the SQL statements of all engines in this process within a block, without BEGIN; also prepared ones."""
    fetch_really = Database.fetch

    @contextmanager
    def collecting() -> Iterator[list[str]]:
        made: list[str] = []

        def append(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            if not statement.startswith("BEGIN"):
                made.append(statement)

        def fetch(database: Database, statement: object, *arguments: Any, **options: Any) -> object:
            made.append(str(statement))
            return fetch_really(database, statement, *arguments, **options)

        event.listen(Engine, "before_cursor_execute", append)
        monkeypatch.setattr(Database, "fetch", fetch)
        try:
            yield made
        finally:
            event.remove(Engine, "before_cursor_execute", append)
            monkeypatch.setattr(Database, "fetch", fetch_really)

    return collecting


class TestResponse:
    def test_stream_arrives_as_it_is_written(self, api: httpx.Client, running: Sandbox, agent: Agent) -> None:
        with api.stream("GET", f"/sandbox/{running.id}/stream", headers=key_of(running)) as response:
            pieces = response.iter_text()
            for number in range(1, 4):
                agent.server.pieces = number
                assert next(pieces) == f"data: {number}\n\n"
        # The proxy stops reading when the caller disconnects.
        assert eventually(lambda: agent.server.left == 1)

    @pytest.mark.parametrize("form", ["absolute", "relative"])
    def test_redirects_stay_on_the_path(self, api: httpx.Client, running: Sandbox, form: str) -> None:
        response = api.get(f"/sandbox/{running.id}/moved?{form}", headers=key_of(running))
        assert (response.status_code, response.headers["location"]) == (307, f"/sandbox/{running.id}/moved/")

    def test_server_s_401_is_passed_on(self, api: httpx.Client, running: Sandbox, agent: Agent) -> None:
        agent.server.key = "another"
        assert api.get(f"/sandbox/{running.id}/api/x", headers=key_of(running)).status_code == 401

    def test_incomplete_response_is_passed_on_as_incomplete(self, api: httpx.Client, running: Sandbox) -> None:
        with pytest.raises(httpx.RemoteProtocolError):
            api.get(f"/sandbox/{running.id}/broken", headers=key_of(running))

    def test_safe_request_is_retried_after_a_closed_connection(
        self, api: httpx.Client, database: Database, user: ApiUser
    ) -> None:
        statuses, requests = [], []
        for method, disconnects in (("GET", 1), ("GET", 2), ("POST", 1), ("DELETE", 1)):
            with disconnecting(disconnects) as (url, got):
                urls = [{"name": "AGENT_SERVER", "url": url, "port": 8000}]
                sandbox = make_sandbox(database, user, exposed_urls=urls)
                statuses.append(api.request(method, f"/sandbox/{sandbox.id}/x", headers=key_of(sandbox)).status_code)
                requests.append(len(got))
        assert (statuses, requests) == ([204, 502, 502, 502], [2, 2, 1, 1])


@contextmanager
def disconnecting(times: int) -> Iterator[tuple[str, list[bytes]]]:
    """Run a server that disconnects without a response `times` times; yield its URL and its requests."""
    got: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        got.append(connection.recv(65_536))
                        if len(got) > times:
                            connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", got
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


class TestActivity:
    def test_traffic_is_activity_but_not_each_request_is_a_write(
        self, api: httpx.Client, database: Database, user: ApiUser, agent: Agent
    ) -> None:
        long_ago = now() - timedelta(hours=1)
        sandbox = make_sandbox(
            database, user, exposed_urls=agent.urls, last_active_at=long_ago, freeze_after_seconds=7200
        )
        agent.server.key = session_key_of(sandbox)
        path = f"/sandbox/{sandbox.id}/api/x"
        assert api.get(path, headers=key_of(sandbox)).status_code == 200
        recorded = eventually(lambda: _activity_after(database, sandbox, long_ago))
        assert recorded is not None
        assert as_stored(database, sandbox).deadline_at == recorded + timedelta(seconds=7200)
        for _ in range(3):
            api.get(path, headers=key_of(sandbox))
        assert as_stored(database, sandbox).last_active_at == recorded

    def test_long_request_is_activity_until_it_ends(
        self, api: httpx.Client, database: Database, user: ApiUser, agent: Agent
    ) -> None:
        sandbox = make_sandbox(
            database,
            user,
            exposed_urls=agent.urls,
            freeze_after_seconds=2,
            deadline_at=now() + timedelta(seconds=2),
            deadline_does="freeze",
        )
        agent.server.key, agent.server.pieces = session_key_of(sandbox), 1
        with api.stream("GET", f"/sandbox/{sandbox.id}/stream", headers=key_of(sandbox)) as response:
            pieces = response.iter_text()
            next(pieces)
            first = eventually(lambda: _activity_after(database, sandbox, sandbox.last_active_at))
            assert first is not None
            assert eventually(lambda: _activity_after(database, sandbox, first))


def _activity_after(database: Database, sandbox: Sandbox, since: datetime) -> datetime | None:
    active = as_stored(database, sandbox).last_active_at
    return active if active != since else None
