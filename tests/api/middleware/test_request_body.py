"""Request bodies: read after authentication, limited in size and time, and parsed without blocking the event loop."""

import asyncio
import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.middleware import request_body
from api.request.context import Context
from shared.models import Conversation, Sandbox
from tests.api.agent_reports import JSON
from tests.api.asgi_requests import AsgiRequest, Receive, body_of, measure_max_stall, never
from tests.api.operations import operations_with_a_body
from tests.factories import ApiUser, session_key_of

CHUNKED = {"Transfer-Encoding": "chunked"} | JSON
SETTINGS = "/api/settings"
# A coarse limit, because the machine may be loaded. `tests/bench/stalls.py` measures the documented 50 ms; other tests
# cover the counting, rejecting and cutting without a clock.
STALL_SECONDS = 0.4
MEGABYTE = 1024 * 1024


def send(client: TestClient, method: str, path: str, headers: dict[str, str], receive: Receive) -> AsgiRequest:
    request = AsgiRequest(method, path, headers)
    asyncio.run(request.run(client.app, receive))
    return request


def measure_stall(client: TestClient, path: str, headers: dict[str, str], content: bytes) -> tuple[float, AsgiRequest]:
    request = AsgiRequest("POST", path, headers | JSON | {"Content-Length": str(len(content))})
    return measure_max_stall(request.run(client.app, body_of(content))), request


class TestOrder:
    @pytest.mark.parametrize("key", [{}, {"Authorization": "Bearer aw_wrong"}, {"X-Session-API-Key": "wrong"}])
    def test_unauthenticated_request_is_rejected_before_its_body_is_read(
        self, client: TestClient, key: dict[str, str]
    ) -> None:
        for operation in operations_with_a_body(client):
            request = send(client, operation.method, operation.url(any="0" * 32), CHUNKED | key, never)
            assert (request.status, request.reads) == (401, 0), operation

    def test_cross_site_request_is_rejected_before_its_body_is_read(self, client: TestClient, user: ApiUser) -> None:
        client.post("/login", data={"api_key": user.key}, headers={"Origin": "http://testserver"})
        cookie = "; ".join(f"{one.name}={one.value}" for one in client.cookies.jar)
        elsewhere = {"Cookie": cookie, "Origin": "https://elsewhere.example", "Host": "testserver"}
        request = send(client, "POST", SETTINGS, CHUNKED | elsewhere, never)
        assert (request.status, request.reads) == (403, 0)

    def test_unknown_path_reads_no_body(self, client: TestClient) -> None:
        request = send(client, "POST", "/api/v1/nothing", CHUNKED, never)
        assert (request.status, request.reads) == (404, 0)


class TestLimits:
    @pytest.mark.parametrize(
        "path", ["/login", "/logout", "/oauth/device/authorize", "/oauth/device/token", "/oauth/device/verify"]
    )
    def test_unauthenticated_bodies_have_a_small_limit(self, client: TestClient, path: str) -> None:
        content, headers = (
            b"a" * 20_000,
            {"Host": "testserver", "Origin": "http://testserver", "Content-Length": "20000"},
        )
        request = send(client, "POST", path, headers, body_of(content))
        assert (request.status, request.reads) in [(413, 1), (200, 0), (303, 0)]

    def test_body_larger_than_its_setting_is_a_413(
        self, context: Context, user: ApiUser, sandbox: Sandbox, conversation: Conversation
    ) -> None:
        limits = {"max_body_bytes": 2_000, "max_webhook_bytes": 3_000}
        events = f"/api/v1/webhooks/events/{conversation.id}"
        small = replace(context, settings=context.settings.model_copy(update=limits))
        with TestClient(create_app(small)) as client:
            for path, key, text, limit in (
                (SETTINGS, user.headers, b"{}", 2_000),
                (events, {"X-Session-API-Key": session_key_of(sandbox)}, b"[]", 3_000),
            ):
                assert client.post(path, content=text.ljust(limit), headers=key | JSON).status_code == 200
                for content in (text.ljust(limit + 1), b"a" * (limit + 1)):
                    refused = client.post(path, content=content, headers=key | JSON)
                    detail = f"the body is larger than {limit} bytes"
                    assert (refused.status_code, refused.json()["detail"]) == (413, detail)

    def test_body_that_times_out_is_a_408(self, context: Context, user: ApiUser) -> None:
        hasty = replace(context, settings=context.settings.model_copy(update={"body_seconds": 0.01}))
        with TestClient(create_app(hasty)) as client:
            request = send(client, "POST", SETTINGS, CHUNKED | user.headers, never)
        assert request.status == 408
        assert "was not received" in json.loads(request.body)["detail"]

    def test_disconnect_within_a_body_is_no_internal_error(
        self, client: TestClient, user: ApiUser, caplog: pytest.LogCaptureFixture
    ) -> None:
        messages: list[dict[str, Any]] = [{"type": "http.request", "body": b"{", "more_body": True}]

        async def leave() -> dict[str, Any]:
            return messages.pop() if messages else {"type": "http.disconnect"}

        request = send(client, "POST", SETTINGS, CHUNKED | user.headers, leave)
        assert request.status == 400
        assert [record for record in caplog.records if record.levelname == "ERROR"] == []

    def test_body_with_too_many_values_is_a_422(self, client: TestClient, user: ApiUser) -> None:
        content = b'{"llm_model": [' + b"1," * 30_000 + b"1]}"
        response = client.post(SETTINGS, content=content, headers=user.headers | JSON)
        assert response.status_code == 422
        assert "20000 values" in response.json()["detail"][0]["msg"]

    def test_commas_within_texts_are_not_values(self, client: TestClient, user: ApiUser) -> None:
        content = json.dumps({"llm_model": "a", "unknown": '["quoted\\", and\\\\",]' * 30_000})
        assert client.post(SETTINGS, content=content, headers=user.headers | JSON).status_code == 200

    def test_number_with_too_many_digits_is_a_422(self, client: TestClient, user: ApiUser) -> None:
        for digits, status in ((400, 200), (401, 422)):
            content = b'{"llm_model": "%b", "unknown": [%b]}' % (b"1" * 401, b"1" * digits)
            response = client.post(SETTINGS, content=content, headers=user.headers | JSON)
            assert response.status_code == status
        [entry] = response.json()["detail"]
        assert (entry["loc"], entry["type"]) == (["body"], "number_too_long")
        assert "more than 400 digits" in entry["msg"]

    @pytest.mark.parametrize(
        ("text", "status"), [("a\\u0000b", 422), ("a\\\\\\u0000b", 422), ("a\\\\u0000b", 200), ("a\\\\\\\\u0000b", 200)]
    )
    def test_escaped_nul_is_rejected_but_not_an_escaped_backslash(
        self, client: TestClient, user: ApiUser, text: str, status: int
    ) -> None:
        response = client.post(SETTINGS, content=f'{{"llm_model": "{text}"}}', headers=user.headers | JSON)
        assert response.status_code == status

    @pytest.mark.parametrize("number", [2 * MEGABYTE, 2 * MEGABYTE + 1])
    def test_check_of_backslashes_needs_memory_for_one_body(self, number: int) -> None:
        content = rb'"\\\\u0000' + b"\\" * number + b'u0000"'
        tracemalloc.start()
        try:
            error = request_body.find_error(content)
            assert error is not None
            assert error["type"] == ("nul" if number % 2 == 1 else "too_many_values")
            assert tracemalloc.get_traced_memory()[1] < 3 * len(content)
        finally:
            tracemalloc.stop()


class TestStalls:
    @pytest.mark.parametrize(
        "content",
        [
            b'{"a": "\\u0000", "b": [' + b"1," * (2 * MEGABYTE - 100) + b"1]}",
            b"[" + b"[]," * MEGABYTE + b"[]]",
            b'{"llm_model": "' + b"\\n" * (2 * MEGABYTE - 100) + b'"}',
            b'{"secrets": {' + b",".join(b'"%d": 7' % number for number in range(250_000)) + b"}}",
        ],
        ids=["NUL", "lists", "escapes", "fields"],
    )
    @pytest.mark.parametrize("has_key", [False, True])
    def test_request_does_not_block_others(
        self, client: TestClient, user: ApiUser, content: bytes, has_key: bool
    ) -> None:
        max_stall, request = measure_stall(client, SETTINGS, user.headers if has_key else {}, content)
        assert request.status == (422 if has_key else 401)
        assert max_stall < STALL_SECONDS

    def test_wrong_fields_do_not_block_others(self, client: TestClient, user: ApiUser) -> None:
        servers = {str(number): 7 for number in range(19_000)}
        content = json.dumps({"agent_settings_diff": {"mcp_config": servers}}).encode()
        max_stall, request = measure_stall(client, "/api/v1/settings", user.headers, content)
        assert (request.status, len(json.loads(request.body)["detail"])) == (422, 100)
        assert max_stall < STALL_SECONDS

    def test_texts_that_are_split_do_not_block_others(self, client: TestClient, user: ApiUser) -> None:
        servers = {f"s{number}": {"command": "x", "args": "\N{GRINNING FACE}" + "a" * 9_900} for number in range(400)}
        content = json.dumps({"agent_settings_diff": {"mcp_config": servers}}).encode()
        max_stall, request = measure_stall(client, "/api/v1/settings", user.headers, content)
        assert request.status == 422
        assert max_stall < STALL_SECONDS

    @pytest.mark.parametrize(
        "event",
        [
            {"text": "x" * MEGABYTE},
            {"lists": [[]] * 300_000},
            {"escapes": "\n" * 400_000},
        ],
        ids=lambda event: next(iter(event)),
    )
    def test_webhook_does_not_block_others(
        self, client: TestClient, sandbox: Sandbox, conversation: Conversation, event: dict[str, Any]
    ) -> None:
        whole = {"id": "e", "kind": "MessageEvent", "timestamp": "2026-01-01T00:00:00"} | event
        one = json.dumps(whole).encode()
        content = b"[" + b",".join([one] * (16 * MEGABYTE // len(one))) + b"]"
        headers = {"X-Session-API-Key": session_key_of(sandbox)}
        max_stall, request = measure_stall(client, f"/api/v1/webhooks/events/{conversation.id}", headers, content)
        assert request.status in (200, 422)
        assert max_stall < STALL_SECONDS
