"""Settings as clients send and read them, and as the database stores them."""

import json
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy import inspect
from sqlmodel import text

from shared.db.database import Database
from shared.users import settings_store
from shared.users.settings import StoredSettings
from tests.factories import VAULT, ApiUser

MASK = "**********"


LLM_KEY, SEARCH_KEY, SANDBOX_KEY = "sk-llm-plain", "tvly-search-plain", "sandbox-plain"


SSE_KEY, SHTTP_KEY, ENV_VALUE, URL_VALUE = "sse-plain", "shttp-plain", "env-plain", "url-plain"


TOKEN, SECRET = "ghp-token-plain", "custom-plain"


SECRETS = [LLM_KEY, SEARCH_KEY, SANDBOX_KEY, SSE_KEY, SHTTP_KEY, ENV_VALUE, URL_VALUE, TOKEN, SECRET]


OPEN: dict[str, Any] = {
    "language": "en",
    "agent": "CodeActAgent",
    "max_iterations": 42,
    "security_analyzer": "llm",
    "confirmation_mode": True,
    "llm_model": "openai/gpt-4o",
    "llm_base_url": "https://llm.example.com/v1",
    "remote_runtime_resource_factor": 2,
    "enable_default_condenser": False,
    "condenser_max_size": 80,
    "enable_sound_notifications": True,
    "enable_proactive_conversation_starters": False,
    "enable_solvability_analysis": False,
    "user_consents_to_analytics": False,
    "sandbox_base_container_image": "debian:12",
    "sandbox_runtime_container_image": "ghcr.io/openhands/agent-server:1",
    "max_budget_per_task": 2.5,
    "email": "alice@example.com",
    "email_verified": True,
    "git_user_name": "Alice Ünal",
    "git_user_email": "alice@git.example.com",
}


KEYS = {"llm_api_key": LLM_KEY, "search_api_key": SEARCH_KEY, "sandbox_api_key": SANDBOX_KEY}


MCP = {
    "sse_servers": [{"url": f"https://sse.example.com/a?api_key={URL_VALUE}&v=1", "api_key": SSE_KEY}],
    "stdio_servers": [{"name": "files", "command": "npx", "args": ["-y", "files"], "env": {"TOKEN": ENV_VALUE}}],
    "shttp_servers": [{"url": "https://shttp.example.com", "api_key": SHTTP_KEY, "timeout": 30}],
}


MASKED_MCP = {
    "sse_servers": [{"url": f"https://sse.example.com/a?api_key={MASK}&v=1", "api_key": MASK}],
    "stdio_servers": [{"name": "files", "command": "npx", "args": ["-y", "files"], "env": {"TOKEN": MASK}}],
    "shttp_servers": [{"url": "https://shttp.example.com", "api_key": MASK, "timeout": 30}],
}


JSON = {"Content-Type": "application/json"}


STORE = {
    "provider_tokens": {"github": {"token": TOKEN, "user_id": "7", "host": "github.example.com"}},
    "custom_secrets": {"DEPLOY_KEY": {"secret": SECRET, "description": "for deploys"}},
}


FULL = {**OPEN, **KEYS, "mcp_config": MCP, "secrets_store": STORE}


DEFAULTS = {
    **dict.fromkeys(OPEN),
    "enable_default_condenser": True,
    "enable_sound_notifications": False,
    "enable_proactive_conversation_starters": True,
    "enable_solvability_analysis": True,
}


def store(client: TestClient, user: ApiUser, body: Any) -> None:
    response = client.post("/api/settings", json=body, headers=user.headers)
    assert (response.status_code, response.json()) == (200, {"message": "Settings stored"})


def read(client: TestClient, user: ApiUser) -> dict[str, Any]:
    response = client.get("/api/settings", headers=user.headers)
    assert response.status_code == 200
    found: dict[str, Any] = response.json()
    return found


def load(database: Database, user: ApiUser) -> StoredSettings:
    with database.reading() as session:
        stored = settings_store.load(session, VAULT, user.id)
    assert stored is not None
    return stored


def raw_store(database: Database) -> str:
    """The whole content of the database, as a thief would get it."""
    with database.reading() as session:
        names = inspect(session.connection()).get_table_names()
        rows = [
            tuple(row)  # the repr of a Row omits the middle of long values
            for name in names
            for row in session.connection().execute(text(f'SELECT * FROM "{name}"'))
        ]
    files = Path(database.engine.url.database or "/").parent.glob("test.db*")
    return repr(rows) + "".join(path.read_bytes().decode("latin-1") for path in files)


def refused(client: TestClient, user: ApiUser, body: dict[str, Any]) -> list[list[str]]:
    """Check the body of a 422; return the locations of its errors."""
    # Any client may write JSON like this, with NaN and lone surrogates.
    response = client.post("/api/settings", content=json.dumps(body), headers=user.headers | JSON)
    assert response.status_code == 422, response.text
    entries = response.json()["detail"]
    assert all(set(entry) == {"loc", "msg", "type"} for entry in entries)
    assert all(isinstance(entry["msg"], str) and isinstance(entry["type"], str) for entry in entries)
    return [entry["loc"] for entry in entries]
