"""Page ids: valid for the list that issued them, a 400 for every other list."""

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.models import Sandbox
from tests.api.operations import all_operations
from tests.factories import ApiUser, make_conversation, make_event, make_sandbox, make_spec, make_start_task

V1 = "/api/v1"
CONVERSATIONS = (f"{V1}/app-conversations", f"{V1}/app-conversations/search", "/api/conversations")
OTHERS = (
    f"{V1}/app-conversations/search?sort_order=CREATED_AT",
    f"{V1}/app-conversations/search?sort_order=TITLE_DESC",
    f"{V1}/app-conversations/start-tasks/search",
    f"{V1}/sandboxes/search",
    f"{V1}/sandbox-specs/search",
    f"{V1}/secrets/search",
    f"{V1}/config/models/search",
    f"{V1}/config/providers/search",
    f"{V1}/skills/search",
)


@pytest.fixture
def lists(client: TestClient, database: Database, user: ApiUser, sandbox: Sandbox) -> list[tuple[str, ...]]:
    """The lists, each with two items; a group is one list at all its paths."""
    make_sandbox(database, user)
    make_spec(database, "another", position=1)
    conversations = [make_conversation(database, user, sandbox) for _ in range(2)]
    for number in range(2):
        make_start_task(database, user)
        client.post(f"{V1}/secrets", json={"name": f"NAME_{number}", "value": "x"}, headers=user.headers)
        for conversation in conversations:
            make_event(database, conversation)
    events = [f"{V1}/conversation/{conversation.id}/events/search" for conversation in conversations]
    return [CONVERSATIONS, *((path,) for path in (*OTHERS, *events))]


def test_foreign_page_id_is_a_400(client: TestClient, user: ApiUser, lists: list[tuple[str, ...]]) -> None:
    def read(path: str, **params: str | int) -> tuple[int, str | None]:
        response = client.get(path, params={**_query(path), **params}, headers=user.headers)
        return response.status_code, response.json().get("next_page_id")

    wrong: list[tuple[str, str, int]] = []
    for own in lists:
        for path in own:
            status, page_id = read(path, limit=1)
            assert (status, bool(page_id)) == (200, "skills" not in path), path
            others = [(other, 200 if group is own else 400) for group in lists for other in group]
            for other, expected in others if page_id else ():
                if (found := read(other, limit=1, page_id=str(page_id))[0]) != expected:
                    wrong.append((path, other, found))
    assert wrong == []


def test_lists_are_all_but_those_of_git_providers(client: TestClient, lists: list[tuple[str, ...]]) -> None:
    known = {path.partition("?")[0] for group in lists for path in group}
    paged = {one.path for one in all_operations(client) if "page_id" in one.parameters and "/git/" not in one.path}
    assert {path.replace("{conversation_id}", _id_in(known)) for path in paged} <= known


def _id_in(paths: set[str]) -> str:
    return next(path for path in paths if path.endswith("/events/search")).split("/")[4]


def _query(path: str) -> dict[str, str]:
    query = path.partition("?")[2]
    return dict([query.split("=")]) if query else {}
