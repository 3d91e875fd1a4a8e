"""Conditional requests for lists (RFC 9110, 13): a client that has the current list gets a 304 without a body."""

import re
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.app import create_app
from api.lists import MAX_QUERY_BYTES
from api.request.context import Context
from shared.db.database import Database
from shared.models import Sandbox
from tests.api.operations import all_operations
from tests.factories import ApiUser, make_conversation

CONVERSATIONS, SANDBOXES = "/api/v1/app-conversations", "/api/v1/sandboxes"
LISTS = [f"{CONVERSATIONS}/search", f"{CONVERSATIONS}/count", f"{SANDBOXES}/search"]
STRONG = re.compile(r'"[0-9a-f]{32}"')
EMPTY = f"{SANDBOXES}/search"


def get(client: TestClient, user: ApiUser, path: str, *known: str, method: str = "GET") -> Any:
    """Request a list; each text is an `If-None-Match` line."""
    lines = [*user.headers.items(), *(("If-None-Match", tags) for tags in known)]
    return client.request(method, path, headers=lines)


def read_tag(client: TestClient, user: ApiUser, path: str) -> str:
    response = get(client, user, path)
    assert response.status_code == 200, response.text
    tag: str = response.headers["ETag"]
    assert STRONG.fullmatch(tag)
    return tag


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", [*LISTS, f"{EMPTY}?limit=5", f"{EMPTY}?x={'x' * MAX_QUERY_BYTES}"])
def test_known_list_is_a_304(client: TestClient, user: ApiUser, path: str, method: str) -> None:
    tag = read_tag(client, user, path)
    response = get(client, user, path, tag, method=method)
    assert (response.status_code, response.content, response.headers["ETag"]) == (304, b"", tag)
    assert response.headers["Cache-Control"] == "no-store"
    assert not {"Content-Type", "Content-Length"} & {name.title() for name in response.headers}


@pytest.mark.parametrize("path", LISTS)
def test_head_has_the_tag_of_the_list(client: TestClient, user: ApiUser, path: str) -> None:
    response = get(client, user, path, method="HEAD")
    assert (response.status_code, response.headers["ETag"]) == (200, read_tag(client, user, path))


@pytest.mark.parametrize("path", LISTS)
def test_changed_list_is_sent_with_another_tag(
    client: TestClient, user: ApiUser, database: Database, sandbox: Sandbox, path: str
) -> None:
    tag = read_tag(client, user, path)
    make_conversation(database, user, sandbox)
    with database.transaction() as session:
        session.get_one(Sandbox, sandbox.id).detail = "changed"
    response = get(client, user, path, tag)
    assert (response.status_code, bool(response.content)) == (200, True)
    assert response.headers["ETag"] != tag
    assert response.content == get(client, user, path).content


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize(
    ("known", "status"),
    [
        (["{}"], 304),
        (["W/{}"], 304),
        (['"a", {}'], 304),
        (['"a,b" ,W/"c",W/{} , "d"'], 304),
        (['"a"', "{}"], 304),
        (["*"], 304),
        ([" * "], 304),
        (['"a"'], 200),
        (['"a{}'], 200),
        (['"*"'], 200),
        ([""], 200),
        (['"', 'W/"'], 200),
    ],
)
@pytest.mark.parametrize("cached", [True, False])
def test_tags_are_compared_weakly(
    client: TestClient, context: Context, user: ApiUser, known: list[str], status: int, *, cached: bool
) -> None:
    tag = read_tag(client, user, EMPTY)
    requested = client if cached else TestClient(create_app(context))
    assert get(requested, user, EMPTY, *(tags.replace("{}", tag) for tags in known)).status_code == status


def test_tag_needs_its_quotes(client: TestClient, user: ApiUser) -> None:
    assert get(client, user, EMPTY, read_tag(client, user, EMPTY).strip('"')).status_code == 200


def test_tag_of_another_user_does_not_match(client: TestClient, user: ApiUser, other_user: ApiUser) -> None:
    tags = {read_tag(client, owner, EMPTY) for owner in (user, other_user)}
    assert len(tags) == 2  # though the lists are the same
    assert get(client, other_user, EMPTY, read_tag(client, user, EMPTY)).status_code == 200


@pytest.mark.usefixtures("sandbox")
def test_tag_changes_with_the_content(client: TestClient, context: Context, user: ApiUser) -> None:
    tag = read_tag(client, user, EMPTY)
    assert read_tag(TestClient(create_app(context)), user, EMPTY) == tag
    assert read_tag(client, user, f"{EMPTY}?limit=9") == tag
    assert read_tag(client, user, f"{EMPTY}?status__eq=ERROR") != tag


@pytest.mark.parametrize("known", ["*", None])
@pytest.mark.parametrize(("change", "status"), [({"headers": {}}, 401), ({"params": {"limit": "0"}}, 422)])
def test_rejected_request_is_no_304(
    client: TestClient, user: ApiUser, known: str | None, change: dict[str, Any], status: int
) -> None:
    tags = {"If-None-Match": known or read_tag(client, user, EMPTY)}
    options = {"headers": user.headers} | change
    response = client.get(EMPTY, **options | {"headers": options["headers"] | tags})
    assert (response.status_code, "ETag" in response.headers) == (status, False)


def test_exactly_the_cached_lists_are_described_as_conditional(client: TestClient) -> None:
    app = client.app
    assert isinstance(app, FastAPI)
    described = {
        path
        for path, operations in app.openapi()["paths"].items()
        for operation in operations.values()
        if "304" in operation["responses"]
    }
    assert described == set(LISTS)
    for path in LISTS:
        operation = app.openapi()["paths"][path]["get"]
        assert "ETag" in operation["responses"]["200"]["headers"]
        assert "content" not in operation["responses"]["304"]
        assert [one["in"] for one in operation["parameters"] if one["name"] == "If-None-Match"] == ["header"]


def test_no_other_operation_has_tags(client: TestClient, user: ApiUser, sandbox: Sandbox) -> None:
    for operation in all_operations(client):
        if operation.method == "GET" and operation.path not in {*LISTS, "/api/v1/changes"}:
            url = operation.url(any=sandbox.id, sandbox_id=sandbox.id)
            response = get(client, user, url, "*")
            assert (response.status_code == 304, "ETag" in response.headers) == (False, False), operation
