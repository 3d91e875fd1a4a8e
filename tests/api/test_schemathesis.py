"""Schemathesis against the OpenAPI description: no 5xx, and no response that the description does not contain.

It generates both valid requests, for existing resources, and invalid ones.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import httpx
import pytest
import schemathesis
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, reject
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.request.session_cookie import COOKIE
from api.routes.v1 import sandbox_logs
from shared.db.database import Database
from shared.models import Conversation, Sandbox
from shared.settings import Settings
from tests import effort
from tests.api.documented import CHANGING, EVERY, FOR_SANDBOXES
from tests.factories import ApiUser, make_start_task, session_key_of
from tests.fakes.scripted_agent import ScriptedAgent
from tests.fixtures.git_host import PROVIDERS, with_git_host

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
# Number of examples of each kind for each operation.
EXAMPLES = effort.choose(quick=2, change=2, thorough=200)
# Responses that are streams without an end.
ENDLESS = {"GET /api/v1/changes", "POST /api/v1/app-conversations/stream-start"}
# Parameters that would cause real waits.
WAITS = ("wait", "Prefer")


@pytest.fixture
def settings(settings: Settings, git_url: str) -> Settings:
    """The administrator has listed the git host."""
    return with_git_host(settings, git_url)


@pytest.fixture
def sandbox(agent_sandbox: Sandbox) -> Sandbox:
    """The sandbox with the scripted agent server."""
    return agent_sandbox


@pytest.fixture
def ids(
    database: Database, user: ApiUser, sandbox: Sandbox, agent_conversation: Conversation, agent: ScriptedAgent
) -> dict[str, str]:
    """Existing values of path parameters; the agent server is scripted with valid responses."""
    responses: dict[str, Any] = {
        "GET /api/git/changes": [],
        "GET /api/git/diff": {"original": "a", "modified": "b"},
        "GET /api/file/download": "text",
        "POST /api/skills": {"skills": []},
        "POST /api/hooks": {"hook_config": None},
        "POST /api/bash/execute_bash_command": {"exit_code": 0, "stdout": "./README.md\n"},
        f"POST /api/conversations/{UUID(agent_conversation.id)}/events": {},
        f"POST /api/conversations/{UUID(agent_conversation.id)}/switch_llm": {},
        f"POST /api/conversations/{UUID(agent_conversation.id)}/switch_acp_model": {},
    }
    agent.responses |= {request: (200, json.dumps(response).encode()) for request, response in responses.items()}
    start = make_start_task(database, user, sandbox)
    return {
        "conversation_id": agent_conversation.id,
        "sandbox_id": sandbox.id,
        "task_id": str(UUID(start.id)),
        "organization_id": user.id,
    }


@pytest.fixture
def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests for logs do not wait for a worker: there is none here."""
    monkeypatch.setattr(sandbox_logs, "SECONDS", 0.1)


@pytest.fixture
def connected(user: ApiUser, connect: Callable[..., None]) -> None:
    """Connect the user to a working host of each git provider."""
    for provider in PROVIDERS:
        connect(user, provider)


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.usefixtures("connected", "no_worker")
def test_responses_to_generated_requests_are_described(
    client: TestClient, user: ApiUser, sandbox: Sandbox, ids: dict[str, str], mode: GenerationMode
) -> None:
    complaints: list[str] = []
    untried: set[str] = set()
    # No invalid request can be generated for these operations; to check that takes a thousand attempts each, at night.
    without_cases = set() if mode.is_positive else {one.label for one in operations(client) if takes_anything(one)}
    for operation in operations(client):
        if operation.label in without_cases and not effort.is_thorough():
            continue
        key = {"X-Session-API-Key": session_key_of(sandbox)} if is_for_sandboxes(operation.path) else user.headers
        params = {name: value for name, value in ids.items() if f"{{{name}}}" in operation.path}
        cases = operation.as_strategy(mode, path_parameters=params if mode.is_positive else None)
        try:
            complaints += [f"{operation.label}: {one}" for one in complaints_about(client, cases, key)]
        except Unsatisfiable:
            untried.add(operation.label)
    assert not complaints, "\n\n".join(complaints)
    assert untried == (without_cases if effort.is_thorough() else set())


def test_rejections_of_cross_site_requests_are_described(client: TestClient) -> None:
    headers = {"Cookie": f"{COOKIE}=x", "Origin": "https://elsewhere.example"}
    rejected = set()
    for operation in operations(client):
        if operation.method != "get":
            response = client.request(operation.method, operation.path, headers=headers, follow_redirects=False)
            assert str(response.status_code) in operation.definition.raw["responses"], operation.label
            if response.status_code == 403:
                rejected.add(operation.label)
    for_programs = {one for one in CHANGING if "/oauth/device/" in one} | FOR_SANDBOXES
    assert rejected == CHANGING - for_programs - ENDLESS


def operations(client: TestClient) -> Iterator[Any]:
    """Yield all operations: those of git providers first, while their hosts are stored; deletes last."""
    app = client.app
    assert isinstance(app, FastAPI)
    document = app.openapi()
    schema = schemathesis.openapi.from_dict(document)
    found = [schema[path][method] for path, methods in document["paths"].items() for method in methods]
    assert sorted(one.label for one in found) == EVERY
    yield from sorted((one for one in found if one.label not in ENDLESS), key=_order)


def _order(operation: Any) -> tuple[bool, bool]:
    return operation.method == "delete", "/git/" not in operation.path


def takes_anything(operation: Any) -> bool:
    """Whether every input with a matching path is valid: the only parameters are any texts in the path."""
    description = operation.definition.raw
    texts = [one for one in description.get("parameters", []) if one["in"] == "path" and is_any_text(one["schema"])]
    return len(texts) == len(description.get("parameters", [])) and "requestBody" not in description


def is_any_text(schema: dict[str, Any]) -> bool:
    return {name: value for name, value in schema.items() if name != "title"} == {"type": "string"}


def is_for_sandboxes(path: str) -> bool:
    """Whether the path requires a sandbox's session key."""
    return "/webhooks/" in path or "/settings/secrets" in path


def complaints_about(client: TestClient, cases: Any, key: dict[str, str]) -> list[str]:
    """Return the first failed check of the responses to these cases.

    Raises:
        Unsatisfiable: there are no such cases.
    """

    @effort.bounds(max_examples=EXAMPLES, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(case=cases)
    def run_case(case: Case[Any]) -> None:
        case.validate_response(send(client, case, key), checks=CHECKS)

    try:
        run_case()
    except Unsatisfiable:
        raise  # not a complaint: there are no cases
    except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - the other operations are still tried
        return [str(error) if isinstance(error, FailureGroup) else repr(error)]
    return []


def send(client: TestClient, case: Case[Any], key: dict[str, str]) -> Any:
    """Send the request of a case; return the response."""
    request = case.as_transport_kwargs(base_url=str(client.base_url), headers=key)
    headers = {name: value.encode("latin-1") for name, value in request.pop("headers").items() if name not in WAITS}
    params = {name: value for name, value in (request.pop("params") or {}).items() if name not in WAITS}
    if isinstance(request.get("data"), bytes | str):
        request["content"] = request.pop("data")
    sent = {name: request[name] for name in ("method", "url", "json", "data", "content") if name in request}
    try:
        return client.request(**sent, headers=headers, params=params)
    except httpx.InvalidURL:
        reject()  # too long for httpx
