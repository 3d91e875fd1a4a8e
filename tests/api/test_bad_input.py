"""Invalid input to every operation: a 4xx with a reason, never a 5xx, never a repeated secret."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.ids import new_id
from shared.models import Sandbox
from tests import effort
from tests.api.documented import EVERY, operations_documented_as
from tests.api.operations import Operation, all_operations, operations_with_a_body
from tests.factories import ApiUser, make_conversation, make_event, make_sandbox, session_key_of

JSON = {"Content-Type": "application/json"}
DEEP = 100_000
SECRET = "s3cr3t-value"

BODIES: dict[str, bytes] = {
    "no body": b"",
    "malformed JSON": b'{"secrets": {"A": "s3cr3t-value"',
    "not JSON": b"s3cr3t-value",
    "invalid UTF-8": b'{"title": "\xff\xfe", "id": "\xff"}',
    "too deep": b"[" * DEEP,
    # A tenth of the depth, because 100,000 lists exceed the limit on lists.
    "too deep, and closed": b"[" * (DEEP // 10) + b"]" * (DEEP // 10),
    "too deep objects": b'{"a":' * DEEP,
    "too deep, with an escaped NUL": b'["\\u0000",' * DEEP,
    "a huge integer": b'{"pr_number": [' + b"9" * 5000 + b'], "max_iterations": ' + b"9" * 5000 + b"}",
    "text": b'"text"',
    "a number": b"3",
    "null": b"null",
    "true": b"true",
    "a list of numbers": b"[1]",
    "a list of nothing": b"[null]",
    "NUL": b'{"title": "a\0b", "llm_model": "a\0b", "id": "a\0b"}',
    "much text": b'{"title": "' + b"x" * 10_000_000 + b'"}',
}
# All operations read bodies by the same code. For a change, each operation gets every third body, and each body reaches
# every third operation; at night, each operation gets all.
STEP = effort.choose(quick=3, change=3, thorough=1)


@pytest.fixture
def conversation_id(database: Database, user: ApiUser, sandbox: Sandbox) -> str:
    conversation = make_conversation(database, user, sandbox)
    for number in range(3):
        make_event(database, conversation, id=f"e{number}")
    make_conversation(database, user, sandbox)
    make_sandbox(database, user)
    return conversation.id


def _headers(operation: Operation, user: ApiUser, sandbox: Sandbox) -> dict[str, str]:
    return {"X-Session-API-Key": session_key_of(sandbox)} if operation.is_webhook else user.headers


def _complaint(response: Any, sent: str) -> Iterator[str]:
    if not 400 <= response.status_code < 500:
        yield f"{sent}: {response.status_code}"
        return
    detail = response.json().get("detail")
    entries = detail if isinstance(detail, list) else [{"loc": [], "msg": detail, "type": ""}]
    if not entries or not all(entry["msg"] and {"loc", "type"} <= entry.keys() for entry in entries):
        yield f"{sent}: has no reason: {response.text[:200]}"
    if SECRET in response.text:
        yield f"{sent}: repeats a secret: {response.text[:200]}"


def test_invalid_bodies_are_rejected_by_every_operation(
    client: TestClient, user: ApiUser, sandbox: Sandbox, conversation_id: str
) -> None:
    complaints: list[str] = []
    for place, operation in enumerate(operations_with_a_body(client)):
        url, headers = operation.url(any=conversation_id), _headers(operation, user, sandbox)
        for name, body in list(BODIES.items())[place % STEP :: STEP]:
            if not operation.needs_body and body in (b"", b"null"):
                continue
            response = client.request(operation.method, url, content=body, headers=headers | JSON)
            complaints += _complaint(response, f"{operation} with {name}")
        for content_type in ("text/plain", "application/x-www-form-urlencoded", "application/octet-stream", "x"):
            response = client.request(
                operation.method, url, content=b"{}", headers=headers | {"Content-Type": content_type}
            )
            complaints += _complaint(response, f"{operation} as {content_type}")
    assert complaints == []


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("invalid UTF-8", "json_invalid", "not UTF-8"),
        ("too deep, and closed", "json_invalid", "too deep"),
        ("a huge integer", "number_too_long", "more than 400 digits"),
    ],
)
@pytest.mark.parametrize("path", ["/api/add-git-providers", "/api/settings", "/api/v1/app-conversations", "/api/keys"])
def test_body_that_can_not_be_read_is_a_422_with_entries(
    client: TestClient, user: ApiUser, name: str, kind: str, words: str, path: str
) -> None:
    response = client.post(path, content=BODIES[name], headers=user.headers | JSON)
    [entry] = response.json()["detail"]
    assert (response.status_code, entry["loc"], entry["type"]) == (422, ["body"], kind)
    assert words in entry["msg"]


def test_escaped_nul_is_a_422(client: TestClient, user: ApiUser) -> None:
    for path in ("/api/v1/app-conversations", "/api/settings"):
        for body in (b'{"title": "a\\u0000b"}', b'{"secrets": {"a\\u0000": ""}}', b'{"x": [[{"y": "\\u0000"}]]}'):
            response = client.post(path, content=body, headers=user.headers | JSON)
            assert response.status_code == 422
            assert "NUL" in response.json()["detail"][0]["msg"]


def test_body_that_is_not_utf_8_is_a_422(client: TestClient, user: ApiUser) -> None:
    response = client.post("/api/settings", content="{}".encode("utf-16-le"), headers=user.headers | JSON)
    assert (response.status_code, "UTF-8" in response.json()["detail"][0]["msg"]) == (422, True)


INVALID_FIELDS: dict[str, list[Any]] = {
    "sandbox_id": [7, [], {}, "nonsense", "x" * 257],
    "conversation_id": ["nonsense", 7, "", "0" * 31],
    "initial_message": [
        "hi",
        {"role": "tyrant"},
        {"content": "hi"},
        {"content": [{"type": "video"}]},
        {"content": [7]},
    ],
    "system_message_suffix": [7, [], "x" * 1_000_001],
    "llm_model": [7, {}, "x" * 501],
    "agent_profile_id": [7, "x" * 257],
    "selected_repository": [7, "no-slash"],
    "selected_branch": [7, "a..b", "x" * 256],
    "git_provider": ["sourceforge", 7],
    "suggested_task": [{}, "x", {"git_provider": "github", "task_type": "REST", "repo": "o/r", "issue_number": 1}],
    "title": [7, [], "\ud800"],
    "trigger": ["whim", 7],
    "pr_number": [7, ["x"], [1.5], [-1], [2**63], [1] * 1001],
    "parent_conversation_id": ["nonsense", 7],
    "agent_type": ["quick", 7],
    "public": ["perhaps", 7, []],
    "plugins": ["x", [{}], [{"source": 7}], [{"source": "s"}] * 101, [{"source": "s", "parameters": []}]],
    "secrets": ["x", [], {"A": 7}, {"A": None}, {"A": "\ud800"}],
}


@pytest.mark.parametrize("field", INVALID_FIELDS)
def test_invalid_fields_of_a_start_are_a_422(client: TestClient, user: ApiUser, field: str) -> None:
    for value in INVALID_FIELDS[field]:
        content = json.dumps({field: value})
        response = client.post("/api/v1/app-conversations", content=content, headers=user.headers | JSON)
        assert response.status_code == 422, f"{field}: {content[:200]}: {response.text[:300]}"
        assert any(field in entry["loc"] for entry in response.json()["detail"])


@pytest.mark.parametrize(
    "parameters", ['{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud800"}', '{"a": ' + "[" * 150 + "]" * 150 + "}"]
)
def test_plugin_parameters_must_be_json(client: TestClient, user: ApiUser, parameters: str) -> None:
    content = f'{{"plugins": [{{"source": "s", "parameters": {parameters}}}]}}'
    response = client.post("/api/v1/app-conversations", content=content, headers=user.headers | JSON)
    assert response.status_code == 422


def _page_id(*values: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


NEWEST, OLDEST = True, False
TIMES = ["yesterday", "", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "1e400", "9" * 40, "2026-13-01"]
INVALID_PARAMETERS: dict[str, list[str]] = {
    "limit": ["0", "101", "-1", "x", "1.5", "9" * 30, "9" * 5000],
    "sort_order": ["RANDOM", ""],
    "kind__eq": ["NoSuchEvent", "x" * 100],
    "created_at__gte": TIMES,
    "created_at__lt": TIMES,
    "updated_at__gte": TIMES,
    "updated_at__lt": TIMES,
    "timestamp__gte": TIMES,
    "timestamp__lt": TIMES,
    "conversation_id__eq": ["nonsense", "", "0" * 33],
    "include_sub_conversations": ["perhaps"],
    "title__contains": ["x" * 501],
    "sandbox_id__eq": ["nonsense", "x" * 257],
    "sandbox_spec_id": ["unknown", "x" * 5000],
    "ids": ["nonsense", "", "0" * 31],
    "id": ["x" * 257],
    "page_id": [
        "!!!",
        "x",
        "é",
        "W" * 10_000,
        base64.urlsafe_b64encode(b"[" * 1200).decode(),
        base64.urlsafe_b64encode(b"\xff\xfe").decode(),
        _page_id(),
        _page_id(1, 2, 3, 4),
        _page_id("conversation.created_at", NEWEST, "2026-01-01T00:00:00", "x"),
        _page_id("conversation.created_at", NEWEST, "9999-12-31T23:59:59-23:59", "x"),
        _page_id("conversation.created_at", NEWEST, "2026-01-01T00:00:00+00:00", 7),
        _page_id("conversation.created_at", NEWEST, "2026-01-01T00:00:00+00:00", "a\0b"),
        _page_id("conversation.created_at", NEWEST, "2026-01-01T00:00:00+00:00", "\ud800"),
        _page_id("conversation.created_at", NEWEST, {}, []),
        _page_id("event.timestamp", OLDEST, "2026-01-01T00:00:00+00:00", 2**63),
        _page_id("event.timestamp", OLDEST, "2026-01-01T00:00:00+00:00", "1"),
        _page_id("event.timestamp", OLDEST, "2026-01-01T00:00:00+00:00", NEWEST),
        _page_id("sandbox_spec.position", OLDEST, 2**70, "x"),
        _page_id("sandbox_spec.position", OLDEST, "0", "x"),
    ],
}


def test_invalid_parameters_are_rejected_by_every_operation(
    client: TestClient, user: ApiUser, sandbox: Sandbox, conversation_id: str
) -> None:
    swept: set[str] = set()
    complaints: list[str] = []
    for operation in all_operations(client):
        url, headers = operation.url(any=conversation_id), _headers(operation, user, sandbox)
        for name in set(operation.parameters) & INVALID_PARAMETERS.keys():
            swept.add(name)
            for value in INVALID_PARAMETERS[name]:
                params = {required: new_id() for required in operation.required} | {name: value}
                response = client.request(operation.method, url, params=params, headers=headers)
                complaints += _complaint(response, f"{operation} with {name}={value[:60]}")
        for name in operation.parameters:
            response = client.request(operation.method, f"{url}?{name}=a%00b", headers=headers)
            complaints += _complaint(response, f"{operation} with a NUL in {name}")
    assert complaints == []
    assert swept == INVALID_PARAMETERS.keys()


def test_batches_of_more_than_100_ids_are_rejected(client: TestClient, user: ApiUser, conversation_id: str) -> None:
    complaints: list[str] = []
    swept: set[str] = set()
    for operation in all_operations(client):
        for name in {"ids", "id"} & set(operation.parameters):
            swept.add(str(operation))
            params = {name: [new_id() for _ in range(101)]}
            response = client.get(operation.url(any=conversation_id), params=params, headers=user.headers)
            if response.status_code != 400 or "100" not in response.json()["detail"]:
                complaints.append(f"{operation}: {response.status_code} {response.text}")
            if name in operation.required:
                response = client.get(operation.url(any=conversation_id), headers=user.headers)
                complaints += _complaint(response, f"{operation} without {name}")
    assert complaints == []
    assert swept == operations_documented_as("by `id") | operations_documented_as("with `ids`")


ACCEPTING_NEW_NAMES = {"POST /api/v1/settings/profiles/{name}", "DELETE /api/v1/settings/profiles/{name}"}
INVALID_IDS = [
    *("nonsense", "x" * 5000, "a%00b", "%ff%fe", "%F0%9F%A6%8A", "0" * 31, "'%20OR%201=1", "%5Cud800", "..%2F.."),
    "%EF%BC%90" * 32,  # full-width digits
]


def test_invalid_ids_in_paths_are_rejected_by_every_operation(
    client: TestClient, user: ApiUser, sandbox: Sandbox
) -> None:
    complaints: list[str] = []
    operations = [one for one in all_operations(client) if "{" in one.path and not one.takes_new_names]
    assert {str(one) for one in operations} == {one for one in EVERY if "{" in one} - ACCEPTING_NEW_NAMES
    for operation in operations:
        headers = _headers(operation, user, sandbox)
        params = dict.fromkeys(operation.required, "x")
        body: Any = [] if operation.is_webhook else {} if operation.has_body else None
        for wrong in INVALID_IDS:
            response = client.request(
                operation.method, operation.url(any=wrong), params=params, json=body, headers=headers
            )
            complaints += _complaint(response, f"{operation} with {wrong[:60]}")
    assert complaints == []


def test_unknown_paths_and_methods_have_a_reason(client: TestClient, user: ApiUser) -> None:
    for method, path, status in (
        ("GET", "/api/v1/nothing", 404),
        ("PUT", "/api/v1/sandboxes", 405),
        ("GET", "/api/v1/webhooks/conversations", 405),
    ):
        response = client.request(method, path, headers=user.headers)
        assert response.status_code == status
        assert response.json()["detail"]


def test_body_of_an_operation_without_one_is_ignored(client: TestClient, user: ApiUser, sandbox: Sandbox) -> None:
    # The TypeScript client sends `{}` and a content type with every request.
    for content in (b"{}", b"junk", b"\xff"):
        url = f"/api/v1/sandboxes/{sandbox.id}/resume"
        assert client.post(url, content=content, headers=user.headers | JSON).status_code == 200
