"""What tests of routes share."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event

from shared.database import Database
from shared.models import Conversation, Sandbox
from tests.api.agent_reports import FIRST
from tests.factories import Person, make_conversation, make_sandbox, session_key_of

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def count_queries(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], AbstractContextManager[list[str]]]:
    """Collects the queries that are sent to the store within a block."""

    @contextmanager
    def counting() -> Iterator[list[str]]:
        statements: list[str] = []

        def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if statement.startswith("SELECT"):
                statements.append(statement)

        def fetch(statement: Any, values: dict[str, Any], **options: Any) -> Any:
            statements.append(str(statement.compile(dialect=database.engine.dialect)))
            return fetch_really(statement, values, **options)

        fetch_really = database.fetch
        event.listen(database.engine, "before_cursor_execute", note)
        try:
            with monkeypatch.context() as patch:
                patch.setattr(database, "fetch", fetch)  # these are past the engine's events
                yield statements
        finally:
            event.remove(database.engine, "before_cursor_execute", note)

    return counting


@pytest.fixture
def sandbox(database: Database, user: Person) -> Sandbox:
    """A running sandbox of the user."""
    return make_sandbox(database, user)


@pytest.fixture
def conversation(database: Database, user: Person, sandbox: Sandbox) -> Conversation:
    """A conversation in it that nothing was heard of yet."""
    return make_conversation(database, user, sandbox, created_at=FIRST, updated_at=FIRST)


@pytest.fixture
def tell(client: TestClient, sandbox: Sandbox) -> Callable[..., int]:
    """Sends a webhook as the sandbox does, and gives the status of the answer."""

    def tell(path: str, body: Any, key: str | None = None) -> int:
        headers = {"X-Session-API-Key": key or session_key_of(sandbox)} | JSON
        # In ASCII: half a surrogate pair can't be sent otherwise.
        content = json.dumps(body)
        return int(client.post(f"/api/v1/webhooks{path}", content=content, headers=headers).status_code)

    return tell
