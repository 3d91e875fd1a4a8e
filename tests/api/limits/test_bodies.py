"""The limits on the large bodies that a sandbox or a user sends at a time; they apply before the bodies are read."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import httpx
import pytest

from api.app import create_app
from api.errors.limits import TooManyRequests
from api.json_text import SMALL_BYTES
from api.limits.bodies import BodyLimit
from api.limits.process import BODIES_OF_USER, WEBHOOKS_OF_OWNER
from api.request.context import Context
from shared.db.database import Database
from shared.ids import new_id
from shared.models import Sandbox
from shared.users import settings_store
from tests.factories import VAULT, ApiUser, make_sandbox, session_key_of
from tests.services.asgi import serving
from tests.waiting import eventually

MAX_BYTES, LARGE = 1024 * 1024, 40_000


@pytest.fixture
def url(context: Context) -> Iterator[str]:
    own = replace(
        context,
        settings=context.settings.model_copy(update={"max_webhook_bytes": MAX_BYTES, "max_body_bytes": MAX_BYTES}),
    )
    with serving(create_app(own)) as url:
        yield url


def send(url: str, sandbox: Sandbox, size: int) -> httpx.Response:
    """Report no events, in a body of a given size."""
    path, body = f"/api/v1/webhooks/events/{new_id()}", b"[".ljust(size - 1) + b"]"
    headers = {"X-Session-API-Key": session_key_of(sandbox), "Content-Type": "application/json"}
    return httpx.post(url + path, content=body, headers=headers, trust_env=False)


@contextmanager
def unfinished(url: str, sandbox: Sandbox, length: str) -> Iterator[None]:
    """A webhook whose body does not arrive, although the service waits for it."""
    with unfinished_post(url, f"/api/v1/webhooks/events/{new_id()}", session_key_of(sandbox), length):
        yield


@contextmanager
def unfinished_post(url: str, path: str, key: str, length: str) -> Iterator[None]:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{length}\r\nExpect: 100-continue\r\n"
    with socket.create_connection(("127.0.0.1", httpx.URL(url).port or 0)) as connection:
        connection.sendall(f"{head}X-Session-API-Key: {key}\r\n\r\n".encode())
        # The service sends this once it has counted the body; an earlier large request would be counted in its place.
        assert connection.recv(1024).startswith(b"HTTP/1.1 100 ")
        yield


@pytest.mark.parametrize("length", [f"Content-Length: {MAX_BYTES}", "Transfer-Encoding: chunked"])
def test_sandbox_that_sends_much_gets_a_429_and_others_do_not(
    url: str, user: ApiUser, database: Database, length: str
) -> None:
    hostile, other = (make_sandbox(database, user) for _ in range(2))
    with unfinished(url, hostile, length):
        refused = send(url, hostile, LARGE)
        assert refused.status_code == 429
        assert (refused.headers["Retry-After"], refused.headers["Connection"]) == ("5", "close")
        assert send(url, hostile, SMALL_BYTES).status_code == 200
        assert send(url, other, LARGE).status_code == 200
    eventually(lambda: send(url, hostile, LARGE).status_code == 200)


def test_sandboxes_of_a_user_share_a_limit(url: str, user: ApiUser, other_user: ApiUser, database: Database) -> None:
    *hostile, idle = (make_sandbox(database, user) for _ in range(WEBHOOKS_OF_OWNER + 1))
    with ExitStack() as sent:
        for sandbox in hostile:
            sent.enter_context(unfinished(url, sandbox, f"Content-Length: {MAX_BYTES}"))
        refused = send(url, idle, LARGE)
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
        assert send(url, idle, SMALL_BYTES).status_code == 200
        assert send(url, make_sandbox(database, other_user), LARGE).status_code == 200
    eventually(lambda: send(url, idle, LARGE).status_code == 200)


def test_bodies_of_a_user_share_a_limit(url: str, user: ApiUser, other_user: ApiUser) -> None:
    def save(owner: ApiUser, size: int) -> int:
        secret = {"name": f"LARGE_{new_id()}", "value": "x" * size}
        return httpx.post(f"{url}{path}", json=secret, headers=owner.headers, trust_env=False).status_code

    path = "/api/v1/secrets"
    with ExitStack() as sent:
        for _ in range(BODIES_OF_USER):
            sent.enter_context(unfinished_post(url, path, user.key, f"Content-Length: {MAX_BYTES}"))
        assert save(user, LARGE) == 429
        assert save(user, 10) == 201
        assert save(other_user, LARGE) == 201
    eventually(lambda: save(user, LARGE) == 201)


@pytest.mark.usefixtures("spec", "node")
def test_streamed_start_counts_until_it_has_ended(url: str, user: ApiUser, database: Database) -> None:
    """Its request is a part of the stream, and stays in memory."""
    with database.transaction() as session:
        settings_store.change(session, VAULT, user.id, {"llm_model": "m", "llm_api_key": "k"})
    with ExitStack() as streams, httpx.Client(base_url=url, headers=user.headers, trust_env=False) as client:

        def start(size: int) -> int:
            request = {"initial_message": {"content": [{"text": "x" * (size // 2)}] * 2}}
            begun = client.stream("POST", "/api/v1/app-conversations/stream-start", json=request)
            return streams.enter_context(begun).status_code

        assert [start(MAX_BYTES - 1000) for _ in range(BODIES_OF_USER)] == [200] * BODIES_OF_USER
        assert (start(LARGE), start(10)) == (429, 200)


def test_burst_of_an_agent_server_passes() -> None:
    limit, batch = BodyLimit(32 * 1024 * 1024, of="it"), {"Content-Length": str(5 * 1024 * 1024)}
    with ExitStack() as held:
        for _ in range(6):
            held.enter_context(limit.hold("one", batch))
        with limit.hold("two", batch), pytest.raises(TooManyRequests), limit.hold("one", batch):
            pass
    with (
        limit.hold("one", {"Content-Length": "9" * 5000}),
        pytest.raises(TooManyRequests),
        limit.hold("one", batch),
    ):
        pass
