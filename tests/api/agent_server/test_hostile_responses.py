"""Each response that no honest server sends is an expected error of the API: a 502, and never a 500."""

import asyncio

import pytest
from fastapi.testclient import TestClient

from api.agent_server.client import AgentServers
from api.agent_server.responses import read_response
from shared.agent_server.errors import AgentServerError
from shared.agent_server.responses import RunningPage
from shared.crypto import Vault, new_secret_key
from shared.db.database import Database
from shared.sandboxes import queries as sandbox_queries
from shared.states import Desired
from tests.api.agent_server.test_hostile_servers import make_hostile, send
from tests.factories import DOOR, ApiUser
from tests.services.hostile_responses import RESPONSES, sending
from tests.services.hostile_server import hostile

MOVED = [name for name in RESPONSES if name.startswith("moved")]


@pytest.mark.parametrize("response", RESPONSES)
def test_request_ends_with_an_error_of_the_api(response: str) -> None:
    async def run(url: str) -> None:
        servers = AgentServers(Vault([new_secret_key()]), DOOR)
        try:
            with pytest.raises(AgentServerError):
                await read_response(await servers.request_at(url, "key", "GET", "/any"), RunningPage)
        finally:
            await servers.close()

    with hostile(sending(response)) as server:
        asyncio.run(run(server.url))


@pytest.mark.parametrize("response", MOVED)
def test_redirect_is_a_502(client: TestClient, database: Database, user: ApiUser, response: str) -> None:
    with hostile(sending(response)) as server:
        assert send(client, user, make_hostile(database, user, server)) == 502


@pytest.mark.parametrize("response", MOVED)
def test_stop_of_the_web_ui_pauses_a_sandbox_whose_server_redirects(
    client: TestClient, database: Database, user: ApiUser, response: str
) -> None:
    client.headers["Origin"] = "http://testserver"
    assert client.post("/login", data={"api_key": user.key}, follow_redirects=False).status_code == 303
    with hostile(sending(response)) as server:
        conversation = make_hostile(database, user, server)
        assert client.post(f"/api/v1/sandboxes/{conversation.sandbox_id}/pause").status_code == 200
    with database.reading() as session:
        assert sandbox_queries.get(session, conversation.sandbox_id, user.id).desired == Desired.PAUSED
