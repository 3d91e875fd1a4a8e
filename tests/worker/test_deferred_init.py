"""What a server of the warm pool says before and after it is told whose it is: the real one, the tiny one, the fake."""

from collections.abc import Iterator

import httpx
import pytest

from tests.fakes.agent_server import FakeAgentServer
from tests.services.agent_servers import booted
from tests.services.engine import SANDBOX_IMAGE, TINY_IMAGE
from tests.waiting import eventually
from worker.agent_server import AgentServer, open_client
from worker.agent_server_errors import WrongServer
from worker.sandbox_container import dormant_config, init_config

KEY = "the-session-key"
BOOT_KEY = "the-boot-key"
WEBHOOK = "http://127.0.0.1:9/nobody"
URL = "http://agent-server:8000"


@pytest.fixture(params=["fake", TINY_IMAGE, SANDBOX_IMAGE])
def dormant(request: pytest.FixtureRequest) -> Iterator[tuple[str, httpx.Client]]:
    """As a member of the warm pool boots it."""
    if request.param == "fake":
        fake = FakeAgentServer(boot_key=BOOT_KEY)
        with httpx.Client(transport=httpx.MockTransport(fake.answer)) as client:
            yield URL, client
    else:
        config = dormant_config(BOOT_KEY, origins=[])
        with booted(config, image=request.param) as url, open_client() as client:
            eventually(AgentServer(url, KEY, client).is_dormant, deadline_seconds=120)
            yield url, client


def test_server_of_the_pool_waits_to_be_told(dormant: tuple[str, httpx.Client]) -> None:
    url, client = dormant
    server = AgentServer(url, KEY, client)
    config = init_config(KEY, webhook_url=WEBHOOK)
    assert not_there(url, client) == (503, 404), "it looks for a path that it does not know through all its routes"
    server.warm_up()
    assert server.is_dormant()
    with pytest.raises(WrongServer):
        server.initialize("another", config)
    assert server.initialize(BOOT_KEY, config)
    assert eventually(server.is_ready)
    assert not server.is_dormant()
    with pytest.raises(WrongServer):  # it has dropped the key that it booted with
        server.initialize(BOOT_KEY, config)


def not_there(url: str, client: httpx.Client) -> tuple[int, int]:
    """What a dormant server says of a route that it has, and of one that it has not."""
    known, unknown = (client.get(f"{url}/api/{path}") for path in ("conversations/count", "nowhere"))
    return known.status_code, unknown.status_code
