"""The service with firewall rules: a sandbox works, and a node without its rules is closed until they are restored."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.models import Node
from shared.settings import Settings
from tests.services.client import Client
from tests.services.deployment import Deployment, deployed
from tests.services.engine import TINY_IMAGE, name_installation
from tests.services.namespaces import Namespace
from tests.services.private_engine import PrivateEngine
from tests.services.slots import is_unused, taken_slot
from tests.services.stores import SqliteStores
from tests.services.valkey import Valkey
from tests.waiting import eventually
from worker.network.addresses import make_bridge
from worker.network.rules import Bridge, read_allowed

NODE = "node-a"
# Each resync, every 3 s, must report its result immediately: the next heartbeat might come too late.
RESYNC_SECONDS, REPORT_SECONDS, HEARTBEAT_SECONDS = 3, 10, 15


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    """The sandboxes' network, with addresses that no other test uses."""
    with taken_slot(lambda slot: is_unused(slot.network)) as slot:
        yield make_bridge(Settings(sandbox_addresses=slot.network), INSTALLATION, NODE)


INSTALLATION = name_installation()


@pytest.fixture
def service(sqlite_stores: SqliteStores, valkey: Valkey, engine: PrivateEngine, bridge: Bridge) -> Iterator[Deployment]:
    """The service with default settings except its addresses."""
    rules_on = {
        "AW_NETWORK_ISOLATION": "on",
        "AW_SANDBOX_ADDRESSES": str(bridge.network),
        "AW_SANDBOX_DNS": "none",
        "AW_RESYNC_SECONDS": str(RESYNC_SECONDS),
        "AW_HEARTBEAT_SECONDS": str(HEARTBEAT_SECONDS),
    }
    options: dict[str, Any] = {"broker_url": valkey.url, "installation": INSTALLATION}
    with (
        sqlite_stores.fresh() as url,
        deployed({NODE: engine}, TINY_IMAGE, database_url=url, **options) as found,
    ):
        found.environment |= rules_on
        found.start_api()
        found.start_worker(node=NODE, **rules_on)
        yield found


@pytest.fixture
def alice(service: Deployment) -> Iterator[Client]:
    with service.user("alice") as client:
        yield client


def test_node_is_closed_while_its_rules_are_gone(
    service: Deployment,
    alice: Client,
    engine: PrivateEngine,
    bridge: Bridge,
    record_property: Callable[[str, object], None],
) -> None:
    sandbox_id = alice.start_sandbox()
    alice.await_sandbox(sandbox_id, "RUNNING")
    name = f"aw-{sandbox_id}"
    assert f"{bridge.gateway}\thost.docker.internal" in engine.docker("exec", name, "cat", "/etc/hosts")
    assert reached(engine, name, bridge.gateway, service.door_port)
    assert not reached(engine, name, bridge.gateway, service.port)
    assert not reached(engine, name, engine.gateway, service.door_port)
    assert f'"{bridge.name}"' in rules(bridge)

    subprocess.run(["nft", "delete", "table", "inet", bridge.name], check=True, capture_output=True)
    began = time.monotonic()
    eventually(lambda: "missing" in str(closed_reason(service)), deadline_seconds=REPORT_SECONDS)
    record_property("closed", f"{time.monotonic() - began:.2f} s after the rules were flushed")
    eventually(lambda: closed_reason(service) is None, deadline_seconds=REPORT_SECONDS)
    assert "network_rules_missing" in service.log()
    assert f'"{bridge.name}"' in rules(bridge)
    assert reached(engine, name, bridge.gateway, service.door_port)

    alice.delete(f"/api/v1/sandboxes/{sandbox_id}")
    # Check only the set of sandboxes: the sandbox's flows are counted for longer.
    eventually(lambda: not read_allowed(json.loads(rules(bridge))["nftables"]).sandboxes, deadline_seconds=60)


def reached(engine: PrivateEngine, name: str, address: str, port: int) -> bool:
    pid = engine.docker("inspect", "--format", "{{.State.Pid}}", name).strip()
    [found] = Namespace(Path(f"/proc/{pid}/ns/net")).probe([("tcp", address, port)])
    return found


def rules(bridge: Bridge) -> str:
    command = ["nft", "-j", "list", "table", "inet", bridge.name]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def closed_reason(service: Deployment) -> str | None:
    with service.database.reading() as session:
        return session.get_one(Node, NODE).closed_reason
