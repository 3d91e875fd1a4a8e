"""Request bodies: the key is checked first, size and time are limited, and none blocks the event loop."""

import asyncio
import json
import tracemalloc
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.middleware import request_body as bodies
from shared.models import Conversation, Sandbox
from tests.api.agent_reports import JSON
from tests.api.asgi_requests import Exchange, Receive, body_of, longest_stall, never
from tests.api.operations import operations_with_a_body
from tests.factories import Person, session_key_of

MANY = {"Transfer-Encoding": "chunked"} | JSON
SETTINGS = "/api/settings"
# A coarse guard against seconds: a machine with other work to do takes its time. `tests/bench/stalls.py` measures the
# 50 ms that are promised; what is counted, refused and cut for them is tested apart from any clock.
STALL_SECONDS = 0.4
MEGABYTE = 1024 * 1024


def ask(client: TestClient, method: str, path: str, headers: dict[str, str], receive: Receive) -> Exchange:
    exchange = Exchange(method, path, headers)
    asyncio.run(exchange.run(client.app, receive))
    return exchange


def stall(client: TestClient, path: str, headers: dict[str, str], content: bytes) -> tuple[float, Exchange]:
    exchange = Exchange("POST", path, headers | JSON | {"Content-Length": str(len(content))})
    return longest_stall(exchange.run(client.app, body_of(content))), exchange


class TestOrder:
    @pytest.mark.parametrize("key", [{}, {"Authorization": "Bearer aw_wrong"}, {"X-Session-API-Key": "wrong"}])
    def test_stranger_is_refused_before_any_byte_of_a_body_is_read(
        self, client: TestClient, key: dict[str, str]
    ) -> None:
        for operation in operations_with_a_body(client):
            exchange = ask(client, operation.method, operation.url(any="0" * 32), MANY | key, never)
            assert (exchange.status, exchange.reads) == (401, 0), operation

    def test_page_of_another_site_is_refused_before_any_byte_of_a_body_is_read(
        self, client: TestClient, user: Person
    ) -> None:
        client.post("/login", data={"api_key": user.key}, headers={"Origin": "http://testserver"})
        cookie = "; ".join(f"{one.name}={one.value}" for one in client.cookies.jar)
        elsewhere = {"Cookie": cookie, "Origin": "https://elsewhere.example", "Host": "testserver"}
        exchange = ask(client, "POST", SETTINGS, MANY | elsewhere, never)
        assert (exchange.status, exchange.reads) == (403, 0)

    def test_unknown_path_reads_no_body(self, client: TestClient) -> None:
        exchange = ask(client, "POST", "/api/v1/nothing", MANY, never)
        assert (exchange.status, exchange.reads) == (404, 0)


class TestLimits:
    @pytest.mark.parametrize(
        "path", ["/login", "/logout", "/oauth/device/authorize", "/oauth/device/token", "/oauth/device/verify"]
    )
    def test_strangers_may_send_little(self, client: TestClient, path: str) -> None:
        content, headers = (
            b"a" * 20_000,
            {"Host": "testserver", "Origin": "http://testserver", "Content-Length": "20000"},
        )
        exchange = ask(client, "POST", path, headers, body_of(content))
        assert (exchange.status, exchange.reads) in [(413, 1), (200, 0), (303, 0)]

    @pytest.mark.parametrize("content", [b"a" * 2_000, b'{"llm_model": "' + b"x" * 2_000])
    def test_larger_than_the_limit_is_a_413(
        self, client: TestClient, user: Person, content: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bodies.BodyLimitMiddleware, "_limit", lambda *_: 1_000)
        answer = client.post(SETTINGS, content=content, headers=user.headers | JSON)
        assert (answer.status_code, answer.json()) == (413, {"detail": "the body is larger than 1000 bytes"})

    def test_body_that_does_not_come_is_a_408(
        self, client: TestClient, user: Person, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bodies, "BODY_SECONDS", 0.01)
        exchange = ask(client, "POST", SETTINGS, MANY | user.headers, never)
        assert exchange.status == 408
        assert "has not come" in json.loads(exchange.body)["detail"]

    def test_more_values_than_any_request_needs_are_a_422(self, client: TestClient, user: Person) -> None:
        content = b'{"llm_model": [' + b"1," * 30_000 + b"1]}"
        answer = client.post(SETTINGS, content=content, headers=user.headers | JSON)
        assert answer.status_code == 422
        assert "20000 values" in answer.json()["detail"][0]["msg"]

    def test_commas_within_texts_are_no_values(self, client: TestClient, user: Person) -> None:
        content = json.dumps({"llm_model": "a", "unknown": '["quoted\\", and\\\\",]' * 30_000})
        assert client.post(SETTINGS, content=content, headers=user.headers | JSON).status_code == 200

    def test_number_of_very_many_digits_is_a_422_that_says_so(self, client: TestClient, user: Person) -> None:
        for digits, status in ((400, 200), (401, 422)):
            content = b'{"llm_model": "%b", "unknown": [%b]}' % (b"1" * 401, b"1" * digits)
            answer = client.post(SETTINGS, content=content, headers=user.headers | JSON)
            assert answer.status_code == status
        [entry] = answer.json()["detail"]
        assert (entry["loc"], entry["type"]) == (["body"], "number_too_long")
        assert "more than 400 digits" in entry["msg"]

    @pytest.mark.parametrize(
        ("text", "status"), [("a\\u0000b", 422), ("a\\\\\\u0000b", 422), ("a\\\\u0000b", 200), ("a\\\\\\\\u0000b", 200)]
    )
    def test_escape_of_nul_is_refused_and_the_text_of_one_is_not(
        self, client: TestClient, user: Person, text: str, status: int
    ) -> None:
        answer = client.post(SETTINGS, content=f'{{"llm_model": "{text}"}}', headers=user.headers | JSON)
        assert answer.status_code == status

    @pytest.mark.parametrize("number", [2 * MEGABYTE, 2 * MEGABYTE + 1])
    def test_memory_for_backslashes_is_no_multiple_of_the_body(self, number: int) -> None:
        content = rb'"\\\\u0000' + b"\\" * number + b'u0000"'
        tracemalloc.start()
        try:
            error = bodies.find_error(content)
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
        ids=["NUL", "lists", "escapes", "wrong fields"],
    )
    @pytest.mark.parametrize("has_key", [False, True])
    def test_request_does_not_hold_up_others(
        self, client: TestClient, user: Person, content: bytes, has_key: bool
    ) -> None:
        longest, exchange = stall(client, SETTINGS, user.headers if has_key else {}, content)
        assert 400 <= exchange.status < 500
        assert longest < STALL_SECONDS

    @pytest.mark.parametrize(
        "event",
        [
            {"text": "x" * MEGABYTE},
            {"lists": [[]] * 300_000},
            {"escapes": "\n" * 400_000},
        ],
        ids=lambda event: next(iter(event)),
    )
    def test_webhook_does_not_hold_up_others(
        self, client: TestClient, sandbox: Sandbox, conversation: Conversation, event: dict[str, Any]
    ) -> None:
        whole = {"id": "e", "kind": "MessageEvent", "timestamp": "2026-01-01T00:00:00"} | event
        one = json.dumps(whole).encode()
        content = b"[" + b",".join([one] * (16 * MEGABYTE // len(one))) + b"]"
        headers = {"X-Session-API-Key": session_key_of(sandbox)}
        longest, exchange = stall(client, f"/api/v1/webhooks/events/{conversation.id}", headers, content)
        assert exchange.status in (200, 422)
        assert longest < STALL_SECONDS
