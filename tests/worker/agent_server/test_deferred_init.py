"""Deferred init of a warm sandbox's server: the real one, the tiny one and the fake."""

from collections.abc import Iterator

import httpx
import pytest

from deploy.demo.scripted_model import ScriptedModel
from shared.agent_server.errors import WrongServer
from shared.conversations.webhook_ingest import NODE_HEADER
from tests.factories import DOOR, NODE_ID
from tests.fakes.agent_server import FakeAgentServer
from tests.fixtures.agent_servers import TINY
from tests.services.agent_servers import BOOT_SECONDS, HELLO, KEY, REAL_IMAGE, TargetServer, body_for, booted
from tests.services.engine import TINY_IMAGE
from tests.services.webhooks import WebhookReceiver
from tests.waiting import eventually
from worker.agent_server.client import AgentServer
from worker.agent_server.transport import open_client
from worker.sandboxes.container_spec import deferred_init_config, init_config

INIT_KEY = "the-init-key"


@pytest.fixture(params=["fake", "tiny", "real"])
def server_before_init(request: pytest.FixtureRequest) -> Iterator[TargetServer]:
    """A server that awaits deferred init, as in a warm sandbox."""
    if request.param == "fake":
        fake = FakeAgentServer(boot_key=INIT_KEY)
        with httpx.Client(transport=httpx.MockTransport(fake.respond)) as client:
            yield TargetServer("fake", "http://agent-server:8000", client)
    else:
        image, environment = {"tiny": (TINY_IMAGE, TINY), "real": (REAL_IMAGE, {})}[request.param]
        config = deferred_init_config(INIT_KEY, origins=[])
        with booted(config, image, environment) as url, open_client(DOOR) as client:
            eventually(AgentServer(url, KEY, client).is_dormant, deadline_seconds=BOOT_SECONDS)
            yield TargetServer(request.param, url, client)


def test_server_awaits_deferred_init(
    server_before_init: TargetServer, contract_model: ScriptedModel, receiver: WebhookReceiver
) -> None:
    server = server_before_init.server
    config = init_config(KEY, node_id=NODE_ID, webhook_url=receiver.url)
    assert route_statuses(server_before_init) == (503, 404), "it searches all its routes for an unknown path"
    server.warm_up()
    assert server.is_dormant()
    with pytest.raises(WrongServer):
        server.initialize("another", config)
    assert server.initialize(INIT_KEY, config)
    assert eventually(server.is_ready)
    assert not server.is_dormant()
    with pytest.raises(WrongServer):  # the init key is invalid after the init
        server.initialize(INIT_KEY, config)
    body = body_for(contract_model, initial_message=HELLO)
    server.create_conversation(body)
    if server_before_init.kind != "fake":  # the fake sends no webhooks
        eventually(lambda: receiver.events(body["conversation_id"]))
        sent = [delivery.headers for delivery in receiver.deliveries(body["conversation_id"])]
        assert {(headers["x-session-api-key"], headers[NODE_HEADER.lower()]) for headers in sent} == {(KEY, NODE_ID)}


def route_statuses(target: TargetServer) -> tuple[int, int]:
    """Return the statuses of a known and an unknown route before the init."""
    known, unknown = (target.client.get(f"{target.url}/api/{path}") for path in ("conversations/count", "nowhere"))
    return known.status_code, unknown.status_code
