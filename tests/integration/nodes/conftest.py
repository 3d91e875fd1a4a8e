"""Two nodes, each with an engine and a worker."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from shared.states import NodeStatus
from tests.integration.nodes.cluster import CAPACITY, A, B, Cluster
from tests.services.deployment import Deployment, deployed
from tests.services.deployment_settings import SHORTENED
from tests.services.engine import TINY_IMAGE
from tests.services.private_engine import PrivateEngine, running_private_engine
from tests.services.valkey import Valkey

DISK_BYTES = 64 * 1024**2


@pytest.fixture(scope="package")
def two_engines() -> Iterator[dict[str, PrivateEngine]]:
    """An engine for each node, with the tiny image; A's disk can be filled."""
    with ExitStack() as stack:
        small, large = (running_private_engine([TINY_IMAGE], disk_bytes=size) for size in (DISK_BYTES, 0))
        yield {A: stack.enter_context(small), B: stack.enter_context(large)}


@pytest.fixture
def node_settings() -> dict[str, str]:
    """Settings of these tests in addition to the usual ones."""
    return {}


@pytest.fixture
def cluster(
    database_url: str, valkey: Valkey, two_engines: dict[str, PrivateEngine], node_settings: dict[str, str]
) -> Iterator[Cluster]:
    """The running service with both nodes READY."""
    settings = SHORTENED | {"AW_NODE_CAPACITY": str(CAPACITY)} | node_settings
    with deployed(
        two_engines, TINY_IMAGE, database_url=database_url, broker_url=valkey.url, settings=settings
    ) as service:
        service.start()
        cluster = Cluster(service, two_engines)
        for name in (A, B):
            cluster.await_node(name, NodeStatus.READY)
        yield cluster
    two_engines[A].free_disk()
    for engine in two_engines.values():
        engine.clear()


@pytest.fixture
def service(cluster: Cluster) -> Deployment:
    """The service with both nodes."""
    return cluster.service
