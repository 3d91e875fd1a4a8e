"""A request ends when the user's key that it was sent with is revoked, before its response begins or after that."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from shared.db.database import Database, StoreError
from shared.models import Sandbox
from shared.users import api_keys
from tests.api.sandbox_proxy.doubles import Agent, key_of
from tests.factories import ApiUser
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.sandbox_proxy.access.RECHECK_SECONDS", 0.05)


def test_stream_ends_with_its_key(
    api: httpx.Client, database: Database, user: ApiUser, running: Sandbox, agent: Agent
) -> None:
    with api.stream("GET", f"/sandbox/{running.id}/stream", headers=user.headers, timeout=10) as response:
        pieces = response.iter_text()
        agent.server.pieces = 1
        next(pieces)
        revoke(database, user)
        with pytest.raises(httpx.RemoteProtocolError):
            next(pieces)
    assert eventually(lambda: agent.server.left == 1)


def test_stream_through_the_cloud_proxy_ends_with_its_key(
    api: httpx.Client, database: Database, user: ApiUser, running: Sandbox, agent: Agent
) -> None:
    request = {"host": f"http://h/sandbox/{running.id}", "path": "/stream", "headers": key_of(running)}
    with api.stream("POST", "/api/cloud-proxy", json=request, headers=user.headers, timeout=10) as response:
        pieces = response.iter_text()
        for number in (1, 2):
            agent.server.pieces = number
            assert next(pieces) == f"data: {number}\n\n"
        revoke(database, user)
        with pytest.raises(httpx.RemoteProtocolError):
            next(pieces)
    assert eventually(lambda: agent.server.left == 1)


def test_request_ends_with_its_key_before_its_response_begins(
    api: httpx.Client, database: Database, user: ApiUser, running: Sandbox, agent: Agent
) -> None:
    agent.server.hangs = True
    with ThreadPoolExecutor(1) as thread:
        path = f"/sandbox/{running.id}/api/conversations/{'0' * 32}/events/search"
        request = thread.submit(api.get, path, headers=user.headers, timeout=60)
        try:
            assert eventually(lambda: agent.server.got)
            revoke(database, user)
            assert request.result(30).status_code == 401
        finally:
            agent.server.hangs = False


def test_stream_continues_while_the_store_does_not_respond(
    api: httpx.Client, user: ApiUser, running: Sandbox, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[str] = []

    async def fail(*_: object) -> None:
        checks.append("failed")
        raise StoreError("the store is down")

    with api.stream("GET", f"/sandbox/{running.id}/stream", headers=user.headers, timeout=10) as response:
        pieces = response.iter_text()
        agent.server.pieces = 1
        next(pieces)
        monkeypatch.setattr("api.sandbox_proxy.access.AccessCheck._find_by_api_key", fail)
        eventually(lambda: len(checks) >= 2)
        agent.server.pieces = 2
        assert next(pieces) == "data: 2\n\n"


def test_stream_of_the_sandbox_s_own_key_continues(
    api: httpx.Client, database: Database, user: ApiUser, running: Sandbox, agent: Agent
) -> None:
    with api.stream("GET", f"/sandbox/{running.id}/stream", headers=key_of(running), timeout=10) as response:
        pieces = response.iter_text()
        revoke(database, user)
        for number in range(1, 4):
            agent.server.pieces = number
            assert next(pieces) == f"data: {number}\n\n"


def revoke(database: Database, user: ApiUser) -> None:
    with database.transaction() as session:
        assert api_keys.revoke_key(session, user.key) == 1
