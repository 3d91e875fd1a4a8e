"""Faults of real components: acknowledged requests are executed; failures have a reason and leave nothing behind."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.demo.scripted_model import ScriptedModel
from shared.models import UnknownContainer
from shared.queue.jobs import queues_of
from shared.sandboxes import quarantine
from tests.fixtures.model import MODEL_KEY
from tests.integration.test_main_job import REQUEST, store_settings
from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.engine import SANDBOX_IMAGE, TINY_IMAGE
from tests.services.private_engine import PrivateEngine
from tests.services.valkey import Valkey
from tests.waiting import eventually

SLOW_IMAGE, BROKEN_IMAGE, DEAF_IMAGE = (
    "agent-workspace/tiny:slow",
    "agent-workspace/tiny:broken",
    "agent-workspace/tiny:deaf",
)
VARIANTS = {
    SLOW_IMAGE: {"TINY_BOOT_SECONDS": "4"},
    BROKEN_IMAGE: {"TINY_EXIT_CODE": "3"},
    DEAF_IMAGE: {"TINY_NEVER_HEALTHY": "1"},
}
MISSING_IMAGE = "agent-workspace/tiny:missing"


@pytest.fixture
def tiny(installed: Deployment, engine: PrivateEngine) -> Deployment:
    """The service, not started, with the tiny image and its faulty variants."""
    installed.prepare(TINY_IMAGE, MISSING_IMAGE)
    for image, env in VARIANTS.items():
        engine.docker("tag", TINY_IMAGE, image)
        installed.add_spec(image, env)
    installed.environment["AW_HEALTH_TIMEOUT"] = "8"
    return installed


@pytest.fixture
def started(tiny: Deployment) -> Deployment:
    tiny.start()
    return tiny


@pytest.fixture
def alice(tiny: Deployment) -> Iterator[Client]:
    with tiny.user("alice") as client:
        yield client


class TestKilledWorker:
    def test_start_completes_after_a_restart(self, started: Deployment, alice: Client, engine: PrivateEngine) -> None:
        sandbox_id = alice.start_sandbox(SLOW_IMAGE)
        eventually(lambda: engine.containers() == [f"aw-{sandbox_id}"])
        started.kill("worker")
        found = alice.sandbox(sandbox_id)
        assert found is not None
        assert found["status"] == "STARTING"
        started.start_worker()
        alice.await_sandbox(sandbox_id, "RUNNING")
        assert engine.containers() == engine.volumes() == [f"aw-{sandbox_id}"]

    def test_next_worker_does_not_wait_for_the_lease(
        self, tiny: Deployment, alice: Client, engine: PrivateEngine
    ) -> None:
        tiny.environment["AW_LEASE_SECONDS"] = "15"
        tiny.start()
        sandbox_id = alice.start_sandbox(SLOW_IMAGE)
        eventually(lambda: engine.containers() == [f"aw-{sandbox_id}"])
        tiny.kill("worker")
        tiny.start_worker()
        alice.await_sandbox(sandbox_id, "RUNNING")
        freed = [json.loads(line)["freed"] for line in tiny.log().splitlines() if '"worker_dead"' in line]
        assert freed == [1]

    def test_delete_completes_after_a_restart(self, started: Deployment, alice: Client, engine: PrivateEngine) -> None:
        sandbox_id = alice.start_sandbox()
        alice.await_sandbox(sandbox_id, "RUNNING")
        assert alice.delete(f"/api/v1/sandboxes/{sandbox_id}").status_code == 200
        started.kill("worker")
        assert alice.sandbox(sandbox_id) is None
        started.start_worker()
        eventually(lambda: engine.containers() == engine.volumes() == [], deadline_seconds=180)


@pytest.mark.nightly  # drills kill workers at such points for each change, with the tiny agent server
class TestKilledWorkerOfAConversation:
    """A worker killed during a start with the real agent server."""

    @pytest.mark.parametrize("stage", ["WAITING_FOR_SANDBOX", "STARTING_CONVERSATION"])
    def test_conversation_starts_after_a_restart(
        self, installed: Deployment, engine: PrivateEngine, model: ScriptedModel, stage: str
    ) -> None:
        installed.prepare(SANDBOX_IMAGE)
        installed.start()
        with installed.user("alice") as alice:
            store_settings(alice, model)
            task_id = alice.start_conversation(**REQUEST)
            self.await_stage(alice, task_id, stage)
            if stage == "WAITING_FOR_SANDBOX":
                eventually(lambda: len(engine.containers()) == 1)
            installed.kill("worker")
            assert alice.start_task(task_id)["status"] == stage
            installed.start_worker()
            task = alice.await_start(task_id)
            assert engine.containers() == engine.volumes() == [f"aw-{task['sandbox_id']}"]
            finished = eventually(lambda: self.finished(alice, str(task["app_conversation_id"])))
            assert finished["title"] == "A greeting"
            assert self.user_messages(alice, str(task["app_conversation_id"])) == 1

    def await_stage(self, alice: Client, task_id: str, stage: str) -> None:
        """Wait for a stage that may last 0.2 s only."""
        until = time.monotonic() + 240
        while (status := alice.start_task(task_id)["status"]) != stage:
            assert (status != "READY", time.monotonic() < until) == (True, True)
            time.sleep(0.01)

    def finished(self, alice: Client, conversation_id: str) -> dict[str, Any]:
        found: Any = alice.read("/api/v1/app-conversations", ids=conversation_id)
        done = found[0]["execution_status"] == "finished" and found[0]["title"] == "A greeting"
        return found[0] if done else {}

    def user_messages(self, alice: Client, conversation_id: str) -> int:
        path = f"/api/v1/conversation/{conversation_id}/events/search"
        page: Any = alice.read(path, kind__eq="MessageEvent")
        return len([event for event in page["items"] if event["source"] == "user"])


class TestBrokerDown:
    def test_writes_are_accepted_and_executed_after_the_outage(
        self, started: Deployment, alice: Client, engine: PrivateEngine, valkey: Valkey
    ) -> None:
        kept = alice.start_sandbox()
        alice.await_sandbox(kept, "RUNNING")
        under_way = alice.start_sandbox(SLOW_IMAGE)
        eventually(lambda: f"aw-{under_way}" in engine.containers())
        valkey.kill()
        new = alice.start_sandbox()
        assert alice.post(f"/api/v1/sandboxes/{kept}/pause").status_code == 200
        page: Any = alice.read("/api/v1/sandboxes/search")
        assert [item["id"] for item in page["items"]] == [new, under_way, kept]
        alice.await_sandbox(under_way, "RUNNING")  # its job ends while there is no broker
        valkey.start()
        alice.await_sandbox(new, "RUNNING")
        alice.await_sandbox(kept, "PAUSED")
        assert sorted(engine.containers()) == sorted(f"aw-{name}" for name in (new, under_way, kept))

    def test_lost_job_messages_are_enqueued_by_the_sweep(
        self, started: Deployment, alice: Client, valkey: Valkey
    ) -> None:
        alice.await_sandbox(alice.start_sandbox(), "RUNNING")  # now the node takes jobs
        [urgent, _] = queues_of(started.environment["AW_NODE"])
        started.freeze_between_writes("worker")
        with valkey.client() as broker:
            # The broker would send the message to a worker that waits for one.
            eventually(lambda: broker.info("clients")["blocked_clients"] == 0)
            sandbox_id = alice.start_sandbox()
            eventually(lambda: broker.llen(f"aw:{urgent}") == 1)
            broker.flushall()
        started.wake("worker")
        alice.await_sandbox(sandbox_id, "RUNNING")


class TestEngineDown:
    def test_lists_succeed_and_starts_are_executed_after_the_outage(
        self, started: Deployment, alice: Client, engine: PrivateEngine
    ) -> None:
        before = alice.start_sandbox()
        alice.await_sandbox(before, "RUNNING")
        engine.stop()
        try:
            during = alice.start_sandbox()
            page: Any = alice.read("/api/v1/sandboxes/search")
            assert [item["id"] for item in page["items"]] == [during, before]
        finally:
            engine.start()
        alice.await_sandbox(during, "RUNNING")
        lost = eventually(lambda: self.in_error(alice, before))
        assert lost["reason"] == "exit_code"
        assert alice.post(f"/api/v1/sandboxes/{before}/resume").status_code == 200
        eventually(lambda: (alice.sandbox(before) or {}).get("status") == "RUNNING")

    def in_error(self, alice: Client, sandbox_id: str) -> dict[str, Any]:
        found: Any = alice.sandbox(sandbox_id)
        return found if found["status"] == "ERROR" else {}


class TestReasons:
    @pytest.mark.parametrize(
        ("image", "reason", "words"),
        [
            (MISSING_IMAGE, "image_pull_failed", "missing"),
            (BROKEN_IMAGE, "exit_code", "exit code 3\n"),
            (DEAF_IMAGE, "health_timeout", "no response"),
        ],
    )
    def test_sandbox_that_fails_to_start_has_a_reason(
        self, started: Deployment, alice: Client, engine: PrivateEngine, image: str, reason: str, words: str
    ) -> None:
        sandbox_id = alice.start_sandbox(image)
        failed: Any = eventually(lambda: (alice.sandbox(sandbox_id) or {}).get("status") == "ERROR") and alice.sandbox(
            sandbox_id
        )
        assert failed["reason"] == reason
        assert words in failed["detail"]
        eventually(lambda: engine.containers() == engine.volumes() == [])
        assert alice.delete(f"/api/v1/sandboxes/{sandbox_id}").status_code == 200

    def test_start_without_a_model_key_fails(self, started: Deployment, alice: Client, engine: PrivateEngine) -> None:
        task = alice.await_start(alice.start_conversation(**REQUEST), status="ERROR")
        assert task["reason"] == "llm_key_missing"
        assert "llm_api_key" in str(task["detail"])
        assert (task["sandbox_id"], engine.containers()) == (None, [])

    @pytest.mark.parametrize("image", [TINY_IMAGE, BROKEN_IMAGE])
    def test_conversation_that_fails_to_start_has_a_reason(
        self, started: Deployment, alice: Client, engine: PrivateEngine, model: ScriptedModel, image: str
    ) -> None:
        """The tiny image rejects conversations; the broken one fails earlier."""
        started.make_default(image)
        store_settings(alice, model)
        task = alice.await_start(alice.start_conversation(**REQUEST), status="ERROR")
        assert task["reason"] == ("agent_server_refused" if image == TINY_IMAGE else "sandbox_failed")
        assert MODEL_KEY not in str(task)
        eventually(lambda: engine.containers() == engine.volumes() == [])
        page: Any = alice.read("/api/v1/app-conversations")
        assert page["items"] == []


class TestDrift:
    @pytest.mark.parametrize(
        ("command", "status", "reason"),
        [
            (("kill",), "ERROR", "exit_code"),
            (("rm", "--force"), "ERROR", "container_missing"),
            (("pause",), "PAUSED", "paused_outside"),
        ],
    )
    def test_outside_change_is_observed(
        self,
        started: Deployment,
        alice: Client,
        engine: PrivateEngine,
        command: tuple[str, ...],
        status: str,
        reason: str,
    ) -> None:
        sandbox_id = alice.start_sandbox()
        alice.await_sandbox(sandbox_id, "RUNNING")
        started.freeze("worker")  # otherwise it may observe the exit that precedes a forced removal
        engine.docker(*command, f"aw-{sandbox_id}")
        started.wake("worker")
        eventually(lambda: (alice.sandbox(sandbox_id) or {}).get("status") == status)
        assert (alice.sandbox(sandbox_id) or {})["reason"] == reason

    def test_unknown_container_is_paused_and_removed_after_an_operator_s_approval(
        self, started: Deployment, engine: PrivateEngine
    ) -> None:
        labels = ("--label", "agent-workspace.installation=test-service")
        engine.docker("run", "--detach", "--name", "aw-unknown", *labels, "--entrypoint", "sleep", TINY_IMAGE, "600")
        engine.docker("create", "--name", "aw-unlabelled", TINY_IMAGE)
        eventually(lambda: engine.docker("inspect", "--format", "{{.State.Status}}", "aw-unknown").strip() == "paused")
        # It is registered after it is paused.
        [unknown] = eventually(lambda: read_unknown(started))
        assert unknown.name == "aw-unknown"
        with started.database.transaction() as session:
            quarantine.approve(session, unknown.node_id, [unknown.name])
        eventually(lambda: engine.containers() == ["aw-unlabelled"])


def read_unknown(started: Deployment) -> list[UnknownContainer]:
    with started.database.reading() as session:
        return list(quarantine.find(session))
