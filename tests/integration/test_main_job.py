"""The main job on real components: a conversation is started over HTTP, and all its events can be listed afterwards."""

import json
from operator import itemgetter
from typing import Any

from sqlmodel import select
from websockets.sync.client import ClientConnection, connect

from deploy.demo.scripted_model import ScriptedModel
from shared.models import Event, Sandbox
from tests.fixtures.model import GREETING, MODEL_KEY
from tests.integration.conftest import TOKEN
from tests.services import http
from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.git_http import GitServer
from tests.services.private_engine import PrivateEngine
from tests.services.valkey import Valkey
from tests.waiting import eventually

PROJECT = "/workspace/project/app"
SECRET = "custom-secret-that-must-not-leak"
REQUEST = {"initial_message": {"role": "user", "content": [{"type": "text", "text": "Write a greeting."}]}}


def test_conversation_runs_end_to_end(
    service: Deployment,
    alice: Client,
    engine: PrivateEngine,
    model: ScriptedModel,
    valkey: Valkey,
    git_server: GitServer,
) -> None:
    store_settings(alice, model)
    task = alice.await_start(alice.start_conversation(**REQUEST))
    conversation_id, sandbox_id = str(task["app_conversation_id"]), str(task["sandbox_id"])

    finished = eventually(lambda: listed(alice, execution_status="finished", title="A greeting"))
    assert finished["id"] == conversation_id
    assert finished["sandbox_status"] == "RUNNING"
    container = f"aw-{sandbox_id}"
    assert engine.docker("exec", container, "cat", "/workspace/project/greeting.txt").strip() == GREETING

    reported = eventually(lambda: events_of_the_agent_server(finished, at_least="finished"))
    stored = stored_events(alice, conversation_id)
    assert [event for event in stored if event in reported] == reported
    assert len(set(stored)) == len(stored) == rows_of(service, conversation_id)
    assert_no_secret_is_anywhere(service, alice, engine, valkey, container)
    store_token(alice, git_server)
    assert_repository_is_cloned(service, alice, engine, sandbox_id)

    assert alice.post(f"/api/v1/sandboxes/{sandbox_id}/pause").status_code == 200
    alice.await_sandbox(sandbox_id, "PAUSED")
    assert_still_listed(alice, conversation_id, stored, sandbox_status="PAUSED")

    assert alice.post(f"/api/v1/sandboxes/{sandbox_id}/resume").status_code == 200
    alice.await_sandbox(sandbox_id, "RUNNING")
    assert_traffic_resumes(service, alice, finished)
    engine.stop()
    try:
        assert_still_listed(alice, conversation_id, stored)
    finally:
        engine.start()

    assert alice.delete(f"/api/v1/sandboxes/{sandbox_id}").status_code == 200
    eventually(lambda: engine.containers() == [] and engine.volumes() == [], deadline_seconds=180)
    assert_still_listed(alice, conversation_id, stored, sandbox_status="MISSING")


def store_token(alice: Client, git_server: GitServer) -> None:
    token = {"provider_tokens": {"github": {"token": TOKEN, "host": git_server.url}}}
    assert alice.post("/api/add-git-providers", json=token).status_code == 200


def assert_repository_is_cloned(service: Deployment, alice: Client, engine: PrivateEngine, sandbox_id: str) -> None:
    """Start a conversation with a repository in this sandbox; the token of its clone is stored nowhere."""
    request = {**REQUEST, "selected_repository": "acme/app", "git_provider": "github", "sandbox_id": sandbox_id}
    task = alice.await_start(alice.start_conversation(**request, title="Mine", public=True))
    container = f"aw-{sandbox_id}"

    def inside(command: str) -> str:
        return engine.docker("exec", "--user", "10001", "--workdir", PROJECT, container, "sh", "-c", command).strip()

    assert inside("cat prepared.txt") == "prepared"
    assert inside("git config user.name; git config user.email") == "Alice\nalice@example.com"
    assert "pre-commit.sh" in inside("cat .git/hooks/pre-commit")
    assert inside("git log --format=%s") == "commit 1"
    eventually(lambda: conversation(alice, task).get("execution_status") == "finished")
    shown = conversation(alice, task)
    assert (shown["title"], shown["public"], shown["selected_repository"]) == ("Mine", True, "acme/app")
    assert inside("cat greeting.txt")
    assert inside("git push --quiet origin HEAD:refs/heads/made && git ls-remote origin refs/heads/made")
    written, mounts = written_places(engine, container)

    def found(text: str) -> str:
        files, folders = " ".join(written), " ".join(mounts)
        return inside(f"grep -IlsD skip -d skip {text} {files} /dev/null; grep -rIlsD skip {text} {folders}; true")

    assert f"{PROJECT}/prepared.txt" in found("prepared").split()
    assert found(TOKEN) == ""
    assert TOKEN not in engine.docker("logs", container) + engine.docker("inspect", container) + service.log()


def written_places(engine: PrivateEngine, container: str) -> tuple[list[str], list[str]]:
    """The files of a container's root that differ from its image, and its mounts: all places with contents of its own.

    A search of the image itself would read a gigabyte that existed before the container.
    """
    changed = [line.split(maxsplit=1)[1] for line in engine.docker("diff", container).splitlines()]
    mounted = [line.split()[1] for line in engine.docker("exec", container, "cat", "/proc/mounts").splitlines()]
    return changed, [path for path in mounted if path != "/" and not path.startswith(("/proc", "/sys"))]


def conversation(client: Client, task: dict[str, object]) -> dict[str, Any]:
    found: Any = client.read("/api/v1/app-conversations", ids=task["app_conversation_id"])
    return found[0] or {}


def assert_traffic_resumes(service: Deployment, alice: Client, conversation: dict[str, Any]) -> None:
    """Pause the sandbox before a request and before a websocket; both resume it, and the conversation continues."""
    key, sandbox_id = conversation["session_api_key"], conversation["sandbox_id"]
    url, headers = conversation["conversation_url"], {"X-Session-API-Key": key}
    pause(alice, sandbox_id)
    said = {"role": "user", "content": [{"type": "text", "text": "still there?"}], "run": False}
    assert http.post(f"{url}/events", headers=headers, json=said, timeout=60).status_code == 200
    assert "still there?" in http.get(f"{url}/events/search", params={"limit": 100}, headers=headers, timeout=60).text

    pause(alice, sandbox_id)
    socket = f"/sandbox/{sandbox_id}/sockets/events/{conversation['id']}?resend_mode=all"
    with connect(service.url.replace("http", "ws", 1) + socket, proxy=None, max_size=None) as connection:
        connection.send(json.dumps({"type": "auth", "session_api_key": key}))
        receive(connection, "still there?")
        connection.send(json.dumps(said | {"content": [{"type": "text", "text": "and now?"}]}))
        receive(connection, "and now?")
    pauses = [move["to_status"] for move in alice.read(f"/api/v1/sandboxes/{sandbox_id}/transitions")]
    assert pauses == ["STARTING", *["RUNNING", "PAUSED"] * 3, "RUNNING"]
    assert key not in service.log()


def pause(alice: Client, sandbox_id: str) -> None:
    response = alice.post(f"/api/v1/sandboxes/{sandbox_id}/pause", params={"wait": 60})
    assert response.headers["Operation-Settled"] == "true"


def receive(connection: ClientConnection, text: str) -> None:
    while text not in str(connection.recv(timeout=60)):
        pass


def store_settings(alice: Client, model: ScriptedModel) -> None:
    settings = {
        "llm_model": "openai/greeter",
        "llm_api_key": MODEL_KEY,
        "llm_base_url": model.base_url,
        "git_user_name": "Alice",
        "git_user_email": "alice@example.com",
        "secrets_store": {"custom_secrets": {"DEPLOY_KEY": {"secret": SECRET, "description": "for deploys"}}},
    }
    assert alice.post("/api/settings", json=settings).status_code == 200


def listed(alice: Client, **fields: object) -> dict[str, Any]:
    """The only conversation of the list, or the one with an id, or an empty object until it has these fields."""
    page: Any = alice.read("/api/v1/app-conversations")
    [found] = [item for item in page["items"] if item["id"] == fields.get("id", item["id"])]
    return found if found.items() >= fields.items() else {}


def events_of_the_agent_server(conversation: dict[str, Any], *, at_least: str) -> list[str]:
    """The ids of the agent server's events by their times; empty until the end of the run is among them.

    Two of its threads may append events in another order than they have made them.
    """
    url, headers = conversation["conversation_url"], {"X-Session-API-Key": conversation["session_api_key"]}
    response = http.get(f"{url}/events/search", params={"limit": 100}, headers=headers)
    items = response.json()["items"]
    ended = any(item.get("key") == "execution_status" and item.get("value") == at_least for item in items)
    return [item["id"] for item in sorted(items, key=itemgetter("timestamp"))] if ended else []


def stored_events(alice: Client, conversation_id: str) -> list[str]:
    """The ids of the stored events, page by page."""
    ids: list[str] = []
    page_id: str | None = None
    while True:
        params = {"limit": 5} | ({"page_id": page_id} if page_id else {})
        page: Any = alice.read(f"/api/v1/conversation/{conversation_id}/events/search", **params)
        ids += [event["id"] for event in page["items"]]
        page_id = page["next_page_id"]
        if page_id is None:
            return ids


def rows_of(service: Deployment, conversation_id: str) -> int:
    with service.database.reading() as session:
        return len(session.exec(select(Event.seq).where(Event.conversation_id == conversation_id)).all())


def assert_still_listed(
    alice: Client, conversation_id: str, stored: list[str], *, sandbox_status: str | None = None
) -> None:
    conversation = listed(alice, id=conversation_id, title="A greeting")
    assert conversation
    if sandbox_status is not None:
        assert (conversation["sandbox_status"], conversation["execution_status"]) == (sandbox_status, None)
    assert stored_events(alice, conversation_id)[: len(stored)] == stored
    assert alice.read(f"/api/v1/conversation/{conversation_id}/events/count") >= len(stored)


def assert_no_secret_is_anywhere(
    service: Deployment, alice: Client, engine: PrivateEngine, valkey: Valkey, container: str
) -> None:
    """Check the logs, the queued messages and the engine's description of the container."""
    with service.database.reading() as session:
        sandbox = session.exec(select(Sandbox)).one()
    secrets = [MODEL_KEY, SECRET, alice.user.key, service.vault.decrypt(sandbox.session_key)]
    inspected = engine.docker("inspect", container)
    logged = service.log() + engine.docker("logs", container)
    with valkey.client() as client:
        queued = json.dumps([str(client.dump(key)) for key in client.scan_iter()])
    for secret in secrets:
        assert secret not in inspected
        assert secret not in logged
        assert secret not in queued
