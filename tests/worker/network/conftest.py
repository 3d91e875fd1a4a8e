"""The isolation of a node with an engine and a firewall in memory."""

import pytest

from shared.settings import Settings
from tests.factories import NODE_ID
from tests.fakes.engine import FakeEngine
from tests.fakes.firewall import FakeFirewall
from tests.worker.network.testbed import NetworkTestbed
from tests.worker.scenarios import INSTALLATION
from worker.context import WorkerContext
from worker.network import isolation as module
from worker.network.addresses import make_bridge
from worker.network.isolation import IsolationContext, NetworkIsolation
from worker.network.proxy import EgressProxy


@pytest.fixture
def testbed(
    context: WorkerContext, engine: FakeEngine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> NetworkTestbed:
    """The isolation, and a worker that uses it; the machine has the routes that it needs, and no others."""
    for name in ("find_conflict", "find_route_problem"):
        monkeypatch.setattr(module, name, lambda _: None)
    firewall, bridge = FakeFirewall(), make_bridge(settings, INSTALLATION, NODE_ID)
    proxy = EgressProxy(settings.egress_folder, settings.sandbox_gateway, 3003, firewall)
    parts = IsolationContext(
        settings,
        NODE_ID,
        "9.9.9.9",
        3001,
        INSTALLATION,
        context.database,
        context.vault,
        engine,
        firewall,
        bridge,
        proxy,
    )
    return NetworkTestbed(context, engine, firewall, NetworkIsolation(parts))
