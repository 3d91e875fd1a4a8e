"""Names of models: at most 500 characters, as many as a conversation stores. Older settings may have longer ones."""

from typing import Any
from uuid import UUID

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.models import Conversation
from shared.users import llm_profile_store
from tests.api.agent_server.requests import send
from tests.factories import VAULT, ApiUser, make_sandbox, make_start_task
from tests.fakes.scripted_agent import ScriptedAgent
from tests.rows import as_stored

MAX = 500
V0, V1, PROFILE = "/api/settings", "/api/v1/settings", "/api/v1/settings/profiles/long"


@pytest.mark.parametrize(
    ("path", "where"),
    [
        (V0, ["llm_model"]),
        (V1, ["llm_model"]),
        (V1, ["agent_settings_diff", "llm", "model"]),
        (PROFILE, ["llm", "model"]),
        ("/api/v1/app-conversations", ["llm_model"]),
    ],
)
def test_longer_name_is_refused(client: TestClient, user: ApiUser, path: str, where: list[str]) -> None:
    response = client.post(path, json=_body(where, "x" * (MAX + 1)), headers=user.headers)
    assert response.status_code == 422
    [error] = response.json()["detail"]
    assert (error["loc"], f"at most {MAX} characters" in error["msg"]) == (["body", *where], True)


@pytest.mark.parametrize(("path", "where"), [(V0, ["llm_model"]), (PROFILE, ["llm", "model"])])
def test_name_of_that_length_is_stored(client: TestClient, user: ApiUser, path: str, where: list[str]) -> None:
    assert client.post(path, json=_body(where, "x" * MAX), headers=user.headers).is_success


def test_switch_to_a_stored_profile_with_a_longer_name_succeeds(
    client: TestClient, user: ApiUser, agent_conversation: Conversation, agent: ScriptedAgent, database: Database
) -> None:
    name = "x" * (MAX + 100)
    options = {"include_secrets": True, "keep_key": False}
    with database.transaction() as session:
        llm_profile_store.save(session, VAULT, user.id, "long", {"model": name}, **options)
    agent.responses[f"POST /api/conversations/{UUID(agent_conversation.id)}/switch_llm"] = (200, b'{"success": true}')
    response = send(client, user, agent_conversation, "POST", "switch_profile", {"profile_name": "long"})
    assert response.status_code == 200, response.text
    assert agent.got[0][4]["llm"]["model"] == name
    assert as_stored(database, agent_conversation).llm_model == name[:MAX]


def test_start_with_a_longer_name_is_shown(client: TestClient, user: ApiUser, database: Database) -> None:
    """A sub-conversation's start inherits its parent's name, which SQLite stores in any length."""
    name = "x" * (MAX + 100)
    task = make_start_task(database, user, make_sandbox(database, user), request={"llm_model": name})
    path = f"/api/v1/app-conversations/start-tasks?ids={task.id}"
    response = client.get(path, headers=user.headers)
    assert response.status_code == 200, response.text
    assert response.json()[0]["request"]["llm_model"] == name


def _body(where: list[str], value: Any) -> Any:
    for name in reversed(where):
        value = {name: value}
    return value
