"""Proxied traffic that resumes a sandbox, on real components: an engine, two API processes, the real agent server."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from websockets.sync.client import connect

from tests.services import http
from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.engine import SANDBOX_IMAGE, TINY_IMAGE

WAIT = {"wait": 60}
REQUESTS = 12
# A conversation without messages, which needs no model.
CONVERSATION = {
    "workspace": {"working_dir": "/workspace/project"},
    "agent_settings": {"llm": {"model": "openai/none", "api_key": "k"}},
}


def start(alice: Client, image: str) -> tuple[str, dict[str, str]]:
    """Start a sandbox of that image; return its id and a header with its key."""
    started = alice.await_sandbox(alice.start_sandbox(image), "RUNNING")
    return started["id"], {"X-Session-API-Key": started["session_api_key"]}


def pause(alice: Client, sandbox_id: str, kind: str = "frozen") -> None:
    response = alice.post(f"/api/v1/sandboxes/{sandbox_id}/pause", params=WAIT | {"kind": kind})
    assert response.headers["Operation-Settled"] == "true"


def statuses(alice: Client, sandbox_id: str) -> list[str]:
    return [move["to_status"] for move in alice.read(f"/api/v1/sandboxes/{sandbox_id}/transitions")]


def test_concurrent_requests_cause_one_resume(installed: Deployment) -> None:
    installed.prepare(TINY_IMAGE)
    for name in ("api", "other-api"):
        installed.start_api(name)
    installed.start_worker()
    with installed.user("alice") as alice, ThreadPoolExecutor(REQUESTS) as pool:
        sandbox_id, key = start(alice, TINY_IMAGE)
        url = f"{installed.url}/sandbox/{sandbox_id}/api/conversations/count"

        def send(headers: dict[str, str]) -> int:
            return http.get(url, headers=headers, timeout=60).status_code  # each on its own connection

        for kind, woken in (("frozen", ["RUNNING"]), ("stopped", ["STARTING", "RUNNING"])):
            pause(alice, sandbox_id, kind)
            before = statuses(alice, sandbox_id)
            assert send({"X-Session-API-Key": "aw_wrong"}) == 401
            assert set(pool.map(send, [key, alice.user.headers] * (REQUESTS // 2))) == {200}
            assert statuses(alice, sandbox_id) == before + woken
    log = installed.log()
    assert (log.count('"event": "waking"'), key["X-Session-API-Key"] in log) == (2, False)


def test_conversation_continues_after_a_pause(service: Deployment, alice: Client) -> None:
    sandbox_id, key = start(alice, SANDBOX_IMAGE)
    path = f"{service.url}/sandbox/{sandbox_id}"
    made = http.post(f"{path}/api/conversations", headers=key, json=CONVERSATION, timeout=60)
    assert made.status_code == 201, made.text
    conversation = f"{path}/api/conversations/{made.json()['id']}"
    pause(alice, sandbox_id)
    said = {"role": "user", "content": [{"type": "text", "text": "still there?"}], "run": False}
    assert http.post(f"{conversation}/events", headers=key, json=said, timeout=60).status_code == 200
    events: Any = http.get(f"{conversation}/events/search", headers=key, timeout=60).json()["items"]
    assert "still there?" in json.dumps(events)

    pause(alice, sandbox_id)
    socket = f"{path.replace('http', 'ws', 1)}/sockets/events/{made.json()['id']}?resend_mode=all"
    with connect(socket, proxy=None, max_size=None) as connection:
        connection.send(json.dumps({"type": "auth", "session_api_key": key["X-Session-API-Key"]}))
        seen: list[str] = []
        while "still there?" not in "".join(seen):
            seen.append(str(connection.recv(timeout=60)))
        connection.send(json.dumps(said | {"content": [{"type": "text", "text": "and now?"}]}))
        while "and now?" not in "".join(seen):
            seen.append(str(connection.recv(timeout=60)))
    assert statuses(alice, sandbox_id) == ["STARTING", "RUNNING", "PAUSED", "RUNNING", "PAUSED", "RUNNING"]
    assert key["X-Session-API-Key"] not in service.log()
