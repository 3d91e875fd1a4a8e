"""Secrets stay hidden: canaries of every kind, starts that succeed and that fail, and a search of every place."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlmodel import col, select

from deploy.demo.scripted_model import Fail, Finish, RunCommand, Script, ScriptedModel
from shared.models import Sandbox, StartTask
from shared.sandboxes import specs
from shared.states import Status
from tests.factories import SECRET_KEY
from tests.integration.planted_secrets import Planted
from tests.integration.secret_search import (
    Place,
    assert_hidden,
    command_line_of,
    environment_of,
    family,
    in_base64,
    monitored,
    stored_text,
)
from tests.services.client import Client
from tests.services.deployment import Deployment, deployed
from tests.services.engine import SANDBOX_IMAGE, TINY_IMAGE
from tests.services.git_http import running_git_server
from tests.services.private_engine import PrivateEngine
from tests.services.processes import start_module
from tests.services.valkey import Valkey
from tests.waiting import eventually

BROKEN_IMAGE = "agent-workspace/tiny:broken"
MESSAGE = {"initial_message": {"content": [{"type": "text", "text": "Write a greeting."}]}}


@pytest.fixture
def planted() -> Planted:
    return Planted()


@pytest.fixture
def service(database_url: str, valkey: Valkey, engine: PrivateEngine, planted: Planted) -> Iterator[Deployment]:
    """The service at log level DEBUG. Its processes start as an operator starts them: their environment is readable."""
    engine.docker("tag", TINY_IMAGE, BROKEN_IMAGE)
    options: dict[str, Any] = {
        "database_url": database_url,
        "broker_url": valkey.url,
        "start": start_module,
        "prints_log": False,
    }
    with deployed(engine, SANDBOX_IMAGE, TINY_IMAGE, **options) as service:
        service.environment["AW_LOG_LEVEL"] = "DEBUG"
        service.add_spec(BROKEN_IMAGE, {"TINY_EXIT_CODE": "3"})
        with service.database.transaction() as session:
            specs.change(session, TINY_IMAGE, {"warm_target": 1, "warm_most": 1})
        planted.by_name["metrics key"] = service.make_metrics_key()
        yield service


@pytest.fixture
def alice(service: Deployment, engine: PrivateEngine, planted: Planted) -> Iterator[Client]:
    """A user with a secret of every kind, whose responses are recorded."""
    scripts = {
        "openai/greeter": Script([RunCommand("echo hello"), Finish("Done.")], title="A greeting"),
        "openai/rejecter": Script([Fail(401, "that key is not good")]),
    }
    with ScriptedModel(scripts, engine.gateway, api_key=planted["model key"]) as model, service.user("alice") as alice:
        planted.by_name["API key"] = alice.user.key
        alice.event_hooks["response"] = [lambda response: record(planted, response)]
        service.start_api()
        service.start_worker()
        store_secrets(alice, planted, model.base_url)
        yield alice


def test_secrets_are_found_nowhere_after_starts_that_succeed_and_fail(
    service: Deployment, engine: PrivateEngine, valkey: Valkey, planted: Planted, tmp_path: Path, request: Any
) -> None:
    with monitored(valkey) as commands:
        alice: Client = request.getfixturevalue("alice")
        sign_in(alice, planted)
        sandbox_id = start_from_pool(service, alice, planted)
        task = alice.await_start(alice.start_conversation(**MESSAGE, secrets={"ASKED": planted["secret of a start"]}))
        planted.by_name["session key"] = session_key(service, str(task["sandbox_id"]))
        eventually(lambda: listed(alice, task).get("execution_status") == "finished", deadline_seconds=180)
        processes = processes_of(service, engine, str(task["sandbox_id"]))
        fail_in_every_way(alice, planted, engine, str(task["sandbox_id"]), sandbox_id, tmp_path)
        inspected = [engine.docker("inspect", name) for name in engine.containers()]
        logged = [engine.docker("logs", name) for name in engine.containers()]

    assert len(planted.by_name) >= 15
    assert '"level": "debug"' in service.log()
    for place in (
        Place("the processes' logs", service.log(), control=sandbox_id),
        Place("docker inspect", "".join(inspected), control=str(task["sandbox_id"])),
        Place("docker logs", "".join(logged), control="/api/init"),
        Place("the broker, all its commands", "\n".join(commands), control=sandbox_id),
        Place("error texts", error_texts(planted) + details(service), control="exit code 3"),
        Place("the database at rest", stored_text(service.database, service.environment["AW_DATABASE_URL"]), "alice"),
    ):
        assert_hidden(planted.by_name | {"encryption key": SECRET_KEY}, place)
    for place in processes:  # the encryption key may be in their environment
        assert_hidden(planted.by_name, place)
    shown = "\n".join(response.text for response in planted.responses)
    assert_hidden(planted.hidden_from_owners(), Place("responses of the API", shown, control=planted["session key"]))


def test_search_finds_base64_in_every_alignment() -> None:
    assert all(
        any(form in encoded for form in in_base64("needle")) for encoded in ("bmVlZGxl", "eG5lZWRsZXg=", "eHhuZWVkbGV4")
    )


# --- planting -------------------------------------------------------------------------------------------------------


def store_secrets(alice: Client, planted: Planted, model_url: str) -> None:
    settings = {
        "llm_model": "openai/greeter",
        "llm_api_key": planted["model key"],
        "llm_base_url": model_url,
        "search_api_key": planted["search key"],
        "secrets_store": {"custom_secrets": {"DEPLOY_KEY": {"secret": planted["custom secret"]}}},
    }
    assert alice.post("/api/settings", json=settings).status_code == 200


def sign_in(alice: Client, planted: Planted) -> None:
    form = {"api_key": alice.user.key, "returnTo": "/"}
    with httpx.Client(base_url=alice.base_url, headers={"Origin": str(alice.base_url).rstrip("/")}) as browser:
        response = browser.post("/login", data=form)
        assert response.status_code == 303, response.text
        planted.by_name["cookie"] = response.cookies["aw_session"]
        assert browser.get("/api/v1/settings").status_code == 200
        record(planted, browser.post("/login", data={"api_key": planted["wrong API key"], "returnTo": "/"}))
    alice.get("/metrics", headers={"Authorization": f"Bearer {planted['metrics key']}"})


def start_from_pool(service: Deployment, alice: Client, planted: Planted) -> str:
    """Claim a sandbox of the warm pool, and record its init key and its session key."""

    def find_init_key() -> str:
        pool = select(Sandbox).where(col(Sandbox.owner_id).is_(None), Sandbox.status == Status.RUNNING)
        with service.database.reading() as session:
            found = session.exec(pool).first()
            return service.vault.decrypt(found.boot_key) if found and found.boot_key else ""

    planted.by_name["init key"] = eventually(find_init_key)
    sandbox_id = alice.start_sandbox(TINY_IMAGE)
    alice.await_sandbox(sandbox_id, "RUNNING")
    planted.by_name["session key of the pool"] = session_key(service, sandbox_id)
    return sandbox_id


def session_key(service: Deployment, sandbox_id: str) -> str:
    with service.database.reading() as session:
        return service.vault.decrypt(session.get_one(Sandbox, sandbox_id).session_key)


def listed(alice: Client, task: dict[str, Any]) -> dict[str, Any]:
    found: Any = alice.read("/api/v1/app-conversations", ids=task["app_conversation_id"])
    return found[0] or {}


def record(planted: Planted, response: httpx.Response) -> None:
    response.read()
    planted.responses.append(response)


# --- failures -------------------------------------------------------------------------------------------------------


def fail_in_every_way(
    alice: Client,
    planted: Planted,
    engine: PrivateEngine,
    real_id: str,
    tiny_id: str,
    directory: Path,
) -> None:
    assert alice.await_start(alice.start_conversation(**MESSAGE, sandbox_id=tiny_id), status="ERROR")["reason"]
    broken = alice.start_sandbox(BROKEN_IMAGE)
    eventually(lambda: (alice.sandbox(broken) or {}).get("status") == "ERROR")
    fail_to_clone(alice, planted, engine, real_id, directory)
    fail_at_the_model(alice, planted, real_id)
    send_bad_requests(alice, planted)


def fail_to_clone(alice: Client, planted: Planted, engine: PrivateEngine, sandbox_id: str, directory: Path) -> None:
    """Use a git server that accepts the token without the repository, and one that rejects the token."""
    for password in (planted["provider token"], "another"):
        with running_git_server(directory / password, password=password, address=engine.gateway) as server:
            token = {"provider_tokens": {"github": {"token": planted["provider token"], "host": server.url}}}
            assert alice.post("/api/add-git-providers", json=token).status_code == 200
            requested = {"selected_repository": "acme/nowhere", "git_provider": "github", "sandbox_id": sandbox_id}
            task = alice.await_start(alice.start_conversation(**MESSAGE, **requested), status="ERROR")
            assert task["reason"] == "clone_failed"


def fail_at_the_model(alice: Client, planted: Planted, sandbox_id: str) -> None:
    """Use a model that rejects the key, and MCP servers that are unreachable."""
    config = {
        "docs": {
            "url": f"http://127.0.0.1:9/mcp?key={planted['MCP address']}",
            "headers": {"X-Key": planted["MCP header"]},
        },
        "files": {"command": "false", "args": [], "env": {"TOKEN": planted["MCP environment"]}},
    }
    diff = {"mcp_config": config, "llm": {"model": "openai/rejecter"}}
    assert alice.post("/api/v1/settings", json={"agent_settings_diff": diff}).status_code == 200
    task = alice.await_start(alice.start_conversation(**MESSAGE, sandbox_id=sandbox_id))
    eventually(lambda: listed(alice, task).get("execution_status") == "error", deadline_seconds=180)


def send_bad_requests(alice: Client, planted: Planted) -> None:
    bad = planted["key in a rejected request"]
    for path, body in (
        ("/api/settings", {"llm_api_key": [bad]}),
        ("/api/v1/settings", {"agent_settings_diff": {"llm": {"api_key": {"value": bad}}}}),
        ("/api/v1/secrets", {"name": "A B", "value": bad, "more": bad}),
        ("/api/add-git-providers", {"provider_tokens": {"github": {"token": bad, "host": f"http://u:{bad}@[x"}}}),
    ):
        assert alice.post(path, json=body).status_code in (400, 422), path
    events = f"/api/v1/webhooks/events/{'0' * 32}"
    key = {"X-Session-API-Key": planted["session key"]}
    for response in (alice.post(events, headers=key, content="{"), alice.post(events, headers=key, json=[{"id": bad}])):
        assert response.is_client_error
    wrong = {"Authorization": f"Bearer {planted['wrong API key']}"}
    assert alice.get("/api/v1/sandboxes/search", headers=wrong).status_code == 401


# --- places to search -----------------------------------------------------------------------------------------------


def processes_of(service: Deployment, engine: PrivateEngine, sandbox_id: str) -> list[Place]:
    """The /proc texts of the service's processes with their children, and of a sandbox's processes."""
    places = []
    for name in ("api", "worker"):
        pids = family(service.pid(name))
        places += [
            Place(f"environment of {name}", "".join(map(environment_of, pids)), control=SECRET_KEY),
            Place(f"command line of {name}", "".join(map(command_line_of, pids)), control="-m"),
        ]
    inside = [int(pid) for pid in engine.docker("top", f"aw-{sandbox_id}", "-o", "pid").split()[1:]]
    # Without the agent's shells, whose environment the agent server chooses.
    servers = [pid for pid in inside if "agent-server" in command_line_of(pid)]
    return [
        *places,
        Place("command lines in the sandbox", "".join(map(command_line_of, inside)), control="agent-server"),
        Place("environment of the agent server", "".join(map(environment_of, servers)), control="server.json"),
    ]


def error_texts(planted: Planted) -> str:
    return "\n".join(response.text for response in planted.responses if response.is_error)


def details(service: Deployment) -> str:
    """The reasons and details of failures in the store."""
    with service.database.reading() as session:
        words = [
            *session.exec(select(Sandbox.reason, Sandbox.detail)).all(),
            *session.exec(select(StartTask.reason, StartTask.detail)).all(),
        ]
    return "\n".join(f"{reason}: {detail}" for reason, detail in words)
