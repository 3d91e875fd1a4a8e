"""An item of a list equals the response to a GET of its row, for any values of the columns."""

from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.models import Conversation, Sandbox
from shared.states import DeadlineAction
from tests.api.responses import get_json
from tests.factories import ApiUser, fill_columns, make_conversation, make_sandbox


def test_sandbox_in_a_list_has_its_fields(client: TestClient, user: ApiUser, database: Database) -> None:
    urls = [{"name": "AGENT_SERVER", "url": "http://127.0.0.2:8000", "port": 8000}]
    columns = fill_columns(
        Sandbox, owner_id=user.id, node_id="node-a", exposed_urls=urls, deadline_does=DeadlineAction.STOP
    )
    sandbox = make_sandbox(database, user, **columns)
    shown = get_json("/api/v1/sandboxes", client, user, f"/{sandbox.id}")
    assert get_json("/api/v1/sandboxes", client, user, "/search")["items"] == [shown]
    assert [name for name, value in shown.items() if value is None] == ["desired_pause_kind"]


def test_conversation_in_a_list_has_its_fields(client: TestClient, user: ApiUser, database: Database) -> None:
    columns = fill_columns(
        Conversation,
        owner_id=user.id,
        git_provider="github",
        trigger="gui",
        execution_status="error",
        metrics={"accumulated_cost": 0.5},
        parent_id=None,
        deleted_at=None,
    )
    found = make_conversation(database, user, make_sandbox(database, user), **columns)
    shown = get_json("/api/v1/app-conversations", client, user, f"/{found.id}")
    assert get_json("/api/v1/app-conversations", client, user, "/search")["items"] == [shown]
    missing = {name for name, value in shown.items() if value is None}
    assert missing == {"parent_conversation_id", "acp_server", "launched_agent_profile"}
