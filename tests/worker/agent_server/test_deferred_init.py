"""Deferred init of a warm sandbox's server: the real one, the tiny one and the fake."""

from collections.abc import Iterator

import httpx
import pytest

from deploy.demo.scripted_model import ScriptedModel
from shared.conversations.webhook_ingest import NODE_HEADER
from tests.factories import NODE_ID
from tests.fakes.agent_server import FakeAgentServer
from tests.fixtures.agent_servers import TINY, dormant, opened
from tests.services.agent_servers import HELLO, INIT_KEY, KEY, Initialization, TargetServer, body_for, initialize
from tests.services.engine import TINY_IMAGE
from tests.services.webhooks import WebhookReceiver
from tests.waiting import eventually


@pytest.fixture(params=["fake", "tiny", "real"])
def initialized(
    request: pytest.FixtureRequest, receiver: WebhookReceiver
) -> Iterator[tuple[TargetServer, Initialization]]:
    """A server that awaited deferred init, as in a warm sandbox, and how its init went."""
    if request.param == "fake":
        fake = FakeAgentServer(boot_key=INIT_KEY)
        with httpx.Client(transport=httpx.MockTransport(fake.respond)) as client:
            target = TargetServer("fake", "http://agent-server:8000", client)
            yield target, initialize(target, receiver.url)
    elif request.param == "tiny":
        with dormant("tiny", TINY_IMAGE, TINY) as target:
            yield target, initialize(target, receiver.url)
    else:
        with opened(request, "real") as target:
            yield target, request.getfixturevalue("real_initialization")[1]


def test_server_awaits_deferred_init(
    initialized: tuple[TargetServer, Initialization], contract_model: ScriptedModel, receiver: WebhookReceiver
) -> None:
    target, initialization = initialized
    assert initialization.routes == (503, 404), "it searches all its routes for an unknown path"
    assert initialization.dormant == (True, False)
    assert initialization.taken == (None, True, None), "the init key is invalid after the init"
    body = body_for(contract_model, initial_message=HELLO)
    target.server.create_conversation(body)
    if target.kind != "fake":  # the fake sends no webhooks
        eventually(lambda: receiver.events(body["conversation_id"]))
        sent = [delivery.headers for delivery in receiver.deliveries(body["conversation_id"])]
        assert {(headers["x-session-api-key"], headers[NODE_HEADER.lower()]) for headers in sent} == {(KEY, NODE_ID)}
