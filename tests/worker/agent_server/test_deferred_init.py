"""What a server of the warm pool says before and after it is told whose it is: the real one, the tiny one, the fake."""

from collections.abc import Iterator

import httpx
import pytest

from deploy.demo.scripted_model import ScriptedModel
from tests.fakes.agent_server import FakeAgentServer
from tests.fixtures.agent_servers import TINY
from tests.services.agent_servers import BOOT_SECONDS, HELLO, KEY, REAL_IMAGE, Place, body_for, booted
from tests.services.engine import TINY_IMAGE
from tests.services.webhooks import WebhookReceiver
from tests.waiting import eventually
from worker.agent_server.client import AgentServer
from worker.agent_server.errors import WrongServer
from worker.agent_server.exchange import open_client
from worker.sandboxes.container_spec import dormant_config, init_config

BOOT_KEY = "the-boot-key"


@pytest.fixture(params=["fake", "tiny", "real"])
def dormant(request: pytest.FixtureRequest) -> Iterator[Place]:
    """As a member of the warm pool boots it."""
    if request.param == "fake":
        fake = FakeAgentServer(boot_key=BOOT_KEY)
        with httpx.Client(transport=httpx.MockTransport(fake.answer)) as client:
            yield Place("fake", "http://agent-server:8000", client)
    else:
        image, environment = {"tiny": (TINY_IMAGE, TINY), "real": (REAL_IMAGE, {})}[request.param]
        config = dormant_config(BOOT_KEY, origins=[])
        with booted(config, image, environment) as url, open_client() as client:
            eventually(AgentServer(url, KEY, client).is_dormant, deadline_seconds=BOOT_SECONDS)
            yield Place(request.param, url, client)


def test_server_of_the_pool_waits_to_be_told(
    dormant: Place, contract_model: ScriptedModel, receiver: WebhookReceiver
) -> None:
    server = dormant.server
    config = init_config(KEY, webhook_url=receiver.url)
    assert not_there(dormant) == (503, 404), "it looks for a path that it does not know through all its routes"
    server.warm_up()
    assert server.is_dormant()
    with pytest.raises(WrongServer):
        server.initialize("another", config)
    assert server.initialize(BOOT_KEY, config)
    assert eventually(server.is_ready)
    assert not server.is_dormant()
    with pytest.raises(WrongServer):  # it has dropped the key that it booted with
        server.initialize(BOOT_KEY, config)
    body = body_for(contract_model, initial_message=HELLO)
    server.create_conversation(body)
    if dormant.kind != "fake":  # which reports nothing
        eventually(lambda: receiver.events(body["conversation_id"]))
        keys = {delivery.headers["x-session-api-key"] for delivery in receiver.deliveries(body["conversation_id"])}
        assert keys == {KEY}


def not_there(place: Place) -> tuple[int, int]:
    """What a dormant server says of a route that it has, and of one that it has not."""
    known, unknown = (place.client.get(f"{place.url}/api/{path}") for path in ("conversations/count", "nowhere"))
    return known.status_code, unknown.status_code
