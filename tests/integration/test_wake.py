"""Proxied traffic that resumes a sandbox, on real components: an engine and two API processes.

`test_main_job` does it with the real agent server.
"""

from concurrent.futures import ThreadPoolExecutor

from tests.services import http
from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.engine import TINY_IMAGE

WAIT = {"wait": 60}
REQUESTS = 12


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
