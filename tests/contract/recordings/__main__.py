"""`python -m tests.contract.recordings`: record the webhooks of the real agent server with a scripted model.

The image is the sandbox image of `deploy/image/build`, or the one in AW_TEST_SANDBOX_IMAGE.
"""

import httpx

from deploy.demo.network import bridge_address
from deploy.demo.scripted_model import ScriptedModel
from tests.contract.recordings import recording
from tests.factories import DOOR, NODE_ID
from tests.fixtures.agent_servers import make_scripts
from tests.services.agent_servers import BOOT_SECONDS, KEY, TargetServer, booted
from tests.services.webhooks import running_receiver
from tests.waiting import eventually
from worker.agent_server.transport import open_client
from worker.sandboxes.container_spec import server_config


def main() -> None:
    host = bridge_address()
    with ScriptedModel(make_scripts(), host=host) as model, running_receiver(host) as receiver:
        config = server_config(KEY, node_id=NODE_ID, webhook_url=receiver.url, origins=[])
        with booted(config) as url, open_client(DOOR) as client:
            target = TargetServer("real", url, client)
            eventually(target.server.is_ready, deadline_seconds=BOOT_SECONDS)
            version = str(httpx.get(f"{url}/server_info").json()["version"])
            for scenario in recording.SCENARIOS:
                made = recording.record(scenario, version, target, model, receiver)
                recording.write(scenario, made)
                print(f"{scenario}: {len(made.events)} events, {len(made.descriptions)} descriptions")


if __name__ == "__main__":
    main()
