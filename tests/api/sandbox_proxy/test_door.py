"""Requests that do not reach an agent server, because of the node's door or because the sandbox has no such server."""

import httpx
import pytest

from shared.db.database import Database
from tests.api.sandbox_proxy.doubles import key_of
from tests.factories import ApiUser, make_sandbox
from tests.services.hostile_server import answering, hostile


def test_unreachable_server_is_a_502(api: httpx.Client, database: Database, user: ApiUser) -> None:
    urls = [{"name": "AGENT_SERVER", "url": "http://127.0.0.1:9/10.0.0.5/8000", "port": 8000}]
    for exposed, words in ((urls, "its node's door does not respond"), ([], "has no agent server")):
        sandbox = make_sandbox(database, user, exposed_urls=exposed)
        response = api.post(f"/sandbox/{sandbox.id}/api/x", headers=key_of(sandbox), content=b"body")
        assert (response.status_code, words in response.json()["detail"]) == (502, True)


@pytest.mark.parametrize(
    ("status", "words"), [(403, "the door refuses the request"), (503, "its agent server does not respond")]
)
def test_error_of_the_door_is_a_502_that_names_the_failed_part(
    api: httpx.Client, database: Database, user: ApiUser, status: int, words: str
) -> None:
    with hostile(answering("from the door", status, X_Agent_Workspace_Door=str(status))) as door:
        urls = [{"name": "AGENT_SERVER", "url": f"{door.url}/10.0.0.5/8000", "port": 8000}]
        sandbox = make_sandbox(database, user, exposed_urls=urls)
        for method, body, requests in (("GET", None, 2), ("POST", None, 2), ("POST", b"x", 1)):
            door.requested.clear()
            response = api.request(method, f"/sandbox/{sandbox.id}/api/x", headers=key_of(sandbox), content=body)
            # A body is read once: the request can't be sent again.
            got = response.status_code, words in response.json()["detail"], len(door.requested)
            assert got == (502, True, requests), (method, body)
