"""Keys of sandboxes, and of owners on the sandbox path, are looked up for many requests at a time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.requests import Request

from api.request.authentication import _find_sandbox
from api.request.context import MAX_BATCH, Context
from api.sandbox_proxy.access import AccessCheck
from api.sandbox_proxy.request import ProxyRequest
from shared.db.database import Database
from shared.errors import NotFound, Unauthenticated
from shared.models import Sandbox
from shared.sandboxes.access import SandboxAccess
from shared.states import Status
from tests.factories import ApiUser, make_sandbox, session_key_of


@pytest.fixture
def queries(database: Database, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queries outside transactions, as the names of the methods that send them."""
    found: list[str] = []

    def count(name: str) -> None:
        really: Callable[..., Any] = getattr(database, name)

        def send(*arguments: Any, **options: Any) -> Any:
            found.append(name)
            return really(*arguments, **options)

        monkeypatch.setattr(database, name, send)

    count("fetch")
    count("reading")
    return found


def send(*requests: Awaitable[Any]) -> list[Any]:
    async def send_all() -> list[Any]:
        return await asyncio.gather(*requests, return_exceptions=True)

    return asyncio.run(send_all())


def webhook(context: Context, key: str) -> Awaitable[Sandbox]:
    state = type("App", (), {"state": type("State", (), {"context": context})})
    headers = [(b"x-session-api-key", key.encode())]
    return _find_sandbox(Request({"type": "http", "app": state, "headers": headers}))


def access(
    context: Context, sandbox_id: str | None, *, session_key: str | None = None, api_key: str | None = None
) -> Awaitable[SandboxAccess]:
    request = ProxyRequest(sandbox_id, "GET", b"/", [], "http", "192.0.2.1", session_key, api_key)
    return AccessCheck(context).check(request)


def test_webhooks_with_wrong_keys_share_queries(
    context: Context, database: Database, user: ApiUser, other_user: ApiUser, queries: list[str]
) -> None:
    first, second, deleted = (
        make_sandbox(database, user),
        make_sandbox(database, other_user),
        make_sandbox(database, user, status=Status.DELETED),
    )
    keys = [session_key_of(each) for each in (first, second, deleted)]
    found = send(*(webhook(context, key) for key in [*keys, *(f"wrong-{number}" for number in range(40))]))
    assert [each.id for each in found[:2]] == [first.id, second.id]
    assert found[0].owner_id == user.id
    assert {type(each) for each in found[2:]} == {Unauthenticated}
    assert len(queries) <= len(found) // MAX_BATCH + 1


def test_requests_to_sandboxes_with_wrong_keys_share_queries(
    context: Context, database: Database, user: ApiUser, other_user: ApiUser, queries: list[str]
) -> None:
    own, others = make_sandbox(database, user), make_sandbox(database, other_user)
    deleted, key = make_sandbox(database, user, status=Status.DELETED), session_key_of(own)
    expected: list[tuple[Awaitable[SandboxAccess], str | type[Exception]]] = [
        (access(context, own.id, session_key=key), own.id),
        (access(context, None, session_key=key), own.id),
        (access(context, others.id, session_key=key), Unauthenticated),
        (access(context, deleted.id, session_key=session_key_of(deleted)), NotFound),
        (access(context, own.id, api_key=user.key), own.id),
        (access(context, others.id, api_key=user.key), NotFound),
        (access(context, others.id, api_key=other_user.key), others.id),
        (access(context, deleted.id, api_key=user.key), NotFound),
        (access(context, "", api_key=user.key), NotFound),
        *((access(context, own.id, session_key=f"wrong-{number}"), Unauthenticated) for number in range(20)),
        *((access(context, own.id, api_key=f"wrong-{number}"), Unauthenticated) for number in range(20)),
    ]
    found = send(*(request for request, _ in expected))
    results = [each.id if isinstance(each, SandboxAccess) else type(each) for each in found]
    assert results == [result for _, result in expected]
    assert len(queries) <= 4


def test_owner_of_several_sandboxes_reaches_each(context: Context, database: Database, user: ApiUser) -> None:
    sandboxes = [make_sandbox(database, user) for _ in range(5)]
    found = send(*(access(context, each.id, api_key=user.key) for each in sandboxes))
    assert [each.id for each in found] == [each.id for each in sandboxes]
