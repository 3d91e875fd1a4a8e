"""A machine that reboots: engine, broker, worker and API die together, during pending requests, and come back."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.api.agent_reports import event_report
from tests.integration.test_main_job import REQUEST
from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.engine import TINY_IMAGE
from tests.services.power import cut_power
from tests.services.private_engine import PrivateEngine
from tests.services.valkey import Valkey
from tests.waiting import eventually

SLOW_IMAGE = "agent-workspace/tiny:slow"
# An image whose agent server supports conversations.
CONVERSATIONAL_IMAGE = "agent-workspace/tiny:conversational"
# Far longer than a recovery takes on an idle machine. The chaos tests, which run alone, check the promised time.
RECOVERY_SECONDS = 120.0
# The number of requests of each kind that are pending when the machine goes down.
EACH = 3

Ask = Callable[[], httpx.Response]


@pytest.fixture
def alice(installed: Deployment, engine: PrivateEngine) -> Iterator[Client]:
    for image in (SLOW_IMAGE, CONVERSATIONAL_IMAGE):
        engine.docker("tag", TINY_IMAGE, image)
    installed.prepare(TINY_IMAGE)
    installed.add_spec(SLOW_IMAGE, {"TINY_BOOT_SECONDS": "3"})
    installed.add_spec(CONVERSATIONAL_IMAGE, {"TINY_CONVERSES": "1"})
    installed.start_api()
    installed.start_worker()
    with installed.user("alice") as alice:
        settings = {"llm_model": "openai/none", "llm_api_key": "key", "llm_base_url": "http://127.0.0.1:9"}
        assert alice.post("/api/settings", json=settings).status_code == 200
        yield alice


def test_reboot_during_pending_requests_reaches_the_desired_state(
    installed: Deployment, alice: Client, engine: PrivateEngine, valkey: Valkey
) -> None:
    begun = start_conversation(alice)
    event = report_event(alice, begun)
    running = [alice.start_sandbox(TINY_IMAGE) for _ in range(3 * EACH)]
    for sandbox_id in running:
        alice.await_sandbox(sandbox_id, "RUNNING")
    untouched, paused, deleted = running[:EACH], running[EACH : 2 * EACH], running[2 * EACH :]
    untouched_pause = untouched.pop()
    assert alice.post(f"/api/v1/sandboxes/{untouched_pause}/pause").status_code == 200
    alice.await_sandbox(untouched_pause, "PAUSED")

    installed.freeze_between_writes("worker")  # otherwise the worker might have executed all of them already
    started, written = write_concurrently(alice, paused, deleted)
    installed.wake("worker")
    eventually(lambda: has_begun(engine, deleted + started), interval_seconds=0.005)
    assert unfinished(alice, paused, deleted, started) > 0, "no request was pending any more"
    assert written >= 10
    lose_power(installed, engine, valkey)

    boot(installed, engine, valkey)
    began = time.monotonic()
    eventually(lambda: unfinished(alice, paused, deleted, started) == 0, deadline_seconds=180)
    eventually(lambda: all(is_in_error(alice, sandbox_id) for sandbox_id in [*untouched, begun["sandbox_id"]]))
    names = sorted(f"aw-{name}" for name in [*untouched, *paused, *started, untouched_pause, begun["sandbox_id"]])
    eventually(lambda: sorted(engine.containers()) == sorted(engine.volumes()) == names)
    assert time.monotonic() - began < RECOVERY_SECONDS

    assert (alice.sandbox(untouched_pause) or {})["status"] == "PAUSED"
    for sandbox_id in [*untouched, untouched_pause]:
        assert alice.post(f"/api/v1/sandboxes/{sandbox_id}/resume").status_code == 200
        await_running(alice, sandbox_id)
    go_on_with_conversation(alice, engine, begun, event)


def write_concurrently(alice: Client, paused: list[str], deleted: list[str]) -> tuple[list[str], int]:
    """Send pauses, deletes and starts, all acknowledged; return the started sandboxes' ids and the number of writes."""
    requests: list[Ask] = [
        *(lambda path=f"/api/v1/sandboxes/{item}/pause": alice.post(path) for item in paused),
        *(lambda path=f"/api/v1/sandboxes/{item}": alice.delete(path) for item in deleted),
        *(lambda: alice.post("/api/v1/sandboxes", params={"sandbox_spec_id": SLOW_IMAGE}) for _ in range(EACH + 1)),
    ]
    with ThreadPoolExecutor(len(requests)) as pool:
        responses = list(pool.map(lambda send: send(), requests))
    assert [response.status_code for response in responses] == [200] * len(requests)
    return [response.json()["id"] for response in responses[-(EACH + 1) :]], len(requests)


def has_begun(engine: PrivateEngine, sandbox_ids: list[str]) -> bool:
    """Whether the engine has deleted or created the container of one of these sandboxes."""
    there = set(engine.containers())
    deleted, started = sandbox_ids[:EACH], sandbox_ids[EACH:]
    return not {f"aw-{item}" for item in deleted} <= there or any(f"aw-{item}" in there for item in started)


def unfinished(alice: Client, paused: list[str], deleted: list[str], started: list[str]) -> int:
    """The number of unexecuted writes. A start that was lost with the machine may end in ERROR with a reason."""
    wanted = [
        *((item, ("PAUSED",)) for item in paused),
        *((item, (None,)) for item in deleted),
        *((item, ("RUNNING",)) for item in started),
    ]
    found = {item: alice.sandbox(item) or {} for item, _ in wanted}
    return sum(
        found[item].get("status") not in statuses and not (item in started and explains(found[item]))
        for item, statuses in wanted
    )


def explains(sandbox: dict[str, Any]) -> bool:
    return sandbox.get("status") == "ERROR" and bool(sandbox["reason"]) and bool(sandbox["detail"])


def is_in_error(alice: Client, sandbox_id: str) -> bool:
    """Whether a sandbox is in ERROR with a reason, as one that was running at the reboot is until it is resumed."""
    return explains(alice.sandbox(sandbox_id) or {})


def await_running(alice: Client, sandbox_id: str) -> None:
    eventually(lambda: (alice.sandbox(sandbox_id) or {}).get("status") == "RUNNING", deadline_seconds=180)


def start_conversation(alice: Client) -> dict[str, Any]:
    """Start a conversation."""
    sandbox_id = alice.start_sandbox(CONVERSATIONAL_IMAGE)
    alice.await_sandbox(sandbox_id, "RUNNING")
    return alice.await_start(alice.start_conversation(**REQUEST, sandbox_id=sandbox_id))


def report_event(alice: Client, task: dict[str, Any]) -> str:
    """Send an event as the agent server does, and return its id after the acknowledgement."""
    event = event_report()
    key = {"X-Session-API-Key": (alice.sandbox(task["sandbox_id"]) or {})["session_api_key"]}
    path = f"/api/v1/webhooks/events/{task['app_conversation_id']}"
    assert alice.post(path, json=[event], headers=key).status_code == 200
    return str(event["id"])


def go_on_with_conversation(alice: Client, engine: PrivateEngine, task: dict[str, Any], event: str) -> None:
    """Check that the event is stored without a duplicate, and that a message reaches the agent after a resume."""
    conversation_id, sandbox_id = str(task["app_conversation_id"]), str(task["sandbox_id"])
    page: Any = alice.read(f"/api/v1/conversation/{conversation_id}/events/search", limit=100)
    assert [item["id"] for item in page["items"]] == [event]
    assert alice.post(f"/api/v1/sandboxes/{sandbox_id}/resume").status_code == 200
    await_running(alice, sandbox_id)
    message = {"role": "user", "content": [{"type": "text", "text": "Go on."}], "run": True}
    response = alice.post(f"/api/v1/app-conversations/{conversation_id}/send-message", json=message)
    assert response.is_success, response.text
    received = engine.docker("exec", f"aw-{sandbox_id}", "cat", f"/workspace/conversations/{conversation_id}/events")
    assert received.count("Go on.") == 1


# --- the machine ----------------------------------------------------------------------------------------------------


def lose_power(service: Deployment, engine: PrivateEngine, valkey: Valkey) -> None:
    """Stop everything together: the service's processes, the broker, the engine and all containers."""
    for name in ("api", "worker"):
        service.freeze(name)  # so that it does not react to the end of the others
    valkey.stall()
    cut_power(engine)
    for name in ("api", "worker"):
        service.kill(name)
    valkey.kill()


def boot(service: Deployment, engine: PrivateEngine, valkey: Valkey) -> None:
    """Start everything; the worker starts before the engine responds."""
    valkey.start()
    with ThreadPoolExecutor(1) as pool:
        engine_is_back = pool.submit(engine.start)
        service.start_worker()
        service.start_api()
        engine_is_back.result()
