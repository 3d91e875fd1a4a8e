"""The configuration file that a server of a cold start reads at its boot."""

import pytest

from deploy.demo.scripted_model import ScriptedModel
from shared.conversations.webhook_ingest import NODE_HEADER
from tests.factories import DOOR, NODE_ID
from tests.services import http
from tests.services.agent_servers import BOOT_SECONDS, HELLO, KEY, REAL_IMAGE, TargetServer, body_for, booted
from tests.services.engine import SANDBOX_IMAGE
from tests.services.webhooks import WebhookReceiver
from tests.waiting import eventually
from worker.agent_server.transport import open_client
from worker.sandboxes.container_spec import server_config

# For each change, cold starts in tests/integration cover this, but only with the service's own image.
own_at_night = pytest.param(REAL_IMAGE, marks=[pytest.mark.nightly] if REAL_IMAGE == SANDBOX_IMAGE else [], id="real")


@pytest.mark.parametrize("image", [own_at_night])
def test_server_has_its_keys_and_webhooks_since_its_boot(
    image: str, contract_model: ScriptedModel, receiver: WebhookReceiver
) -> None:
    config = server_config(KEY, node_id=NODE_ID, webhook_url=receiver.url, origins=[])
    with booted(config, image) as url, open_client(DOOR) as client:
        target = TargetServer("real", url, client)
        eventually(target.server.is_ready, deadline_seconds=BOOT_SECONDS)
        assert http.get(f"{url}/api/conversations/count").status_code == 401
        body = body_for(contract_model, initial_message=HELLO)
        target.server.create_conversation(body)
        eventually(lambda: receiver.events(body["conversation_id"]))
        sent = [delivery.headers for delivery in receiver.deliveries(body["conversation_id"])]
        assert {(headers["x-session-api-key"], headers[NODE_HEADER.lower()]) for headers in sent} == {(KEY, NODE_ID)}
