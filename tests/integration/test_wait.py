"""`?wait=seconds` over HTTP, on real components: the response waits for the state, with the broker and without it."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.engine import TINY_IMAGE
from tests.services.private_engine import PrivateEngine
from tests.waiting import eventually

SANDBOXES = "/api/v1/sandboxes"
WAIT = {"wait": 60}


@pytest.fixture
def service(installed: Deployment) -> Deployment:
    """The running service, with a small image that supports conversations."""
    installed.prepare()
    installed.add_spec(TINY_IMAGE, {"TINY_CONVERSES": "1"})
    installed.start()
    return installed


@pytest.mark.usefixtures("service")
def test_sandbox_lifecycle_needs_no_polling(alice: Client, engine: PrivateEngine) -> None:
    started = alice.post(SANDBOXES, params=WAIT).json()
    assert (started["status"], bool(started["session_api_key"])) == ("RUNNING", True)
    sandbox_id = started["id"]
    assert alice.sandbox(sandbox_id) == started
    for path, status in (("pause", "PAUSED"), ("resume", "RUNNING"), ("pause?kind=stopped", "PAUSED")):
        response = alice.post(f"{SANDBOXES}/{sandbox_id}/{path}", headers={"Prefer": "wait=60"})
        assert (response.status_code, response.headers["Operation-Settled"]) == (200, "true")
        shown = alice.sandbox(sandbox_id)
        assert shown is not None
        assert shown["status"] == status
    gone = alice.delete(f"{SANDBOXES}/{sandbox_id}", params=WAIT)
    assert (gone.json(), gone.headers["Operation-Settled"]) == ({"success": True}, "true")
    assert (engine.containers(), engine.volumes()) == ([], [])


@pytest.mark.usefixtures("service")
def test_conversation_is_ready_in_the_response(alice: Client) -> None:
    alice.post("/api/settings", json={"llm_model": "openai/none", "llm_api_key": "k"})
    response = alice.post("/api/v1/app-conversations", params=WAIT, json={})
    task = response.json()
    assert (task["status"], response.headers["Operation-Settled"]) == ("READY", "true")
    [conversation] = alice.read("/api/v1/app-conversations", ids=task["app_conversation_id"])
    assert conversation["sandbox_status"] == "RUNNING"
    assert alice.start_task(task["id"]) == task


def test_wait_completes_without_notifications(installed: Deployment) -> None:
    installed.prepare(TINY_IMAGE)
    installed.start_api(AW_REDIS_URL="redis+socket:///nowhere/broker.sock")
    installed.start_worker()
    with installed.user("alice") as alice:
        response = alice.post(SANDBOXES, params=WAIT)
    assert (response.json()["status"], response.headers["Operation-Settled"]) == ("RUNNING", "true")


def test_process_that_shuts_down_sends_pending_responses(installed: Deployment) -> None:
    installed.prepare(TINY_IMAGE)
    installed.start_api()
    with installed.user("alice") as alice, ThreadPoolExecutor(1) as pool:
        started = pool.submit(alice.post, SANDBOXES, params=WAIT)  # there is no worker
        eventually(lambda: alice.read(f"{SANDBOXES}/search")["items"])
        installed.interrupt_process("api")
        response = started.result()
    assert (response.json()["status"], response.headers["Operation-Settled"]) == ("STARTING", "false")
    assert eventually(lambda: installed.exit_code("api") is not None)
