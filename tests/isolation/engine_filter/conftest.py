"""A compromised worker beside a real engine."""

from collections.abc import Iterator

import pytest

from deploy.engine_filter.bodies import Policy
from tests.isolation.engine_filter.testbed import OWN, Worker
from tests.services.engine_socket import EngineSocket, running_engine_filter
from tests.services.private_engine import PrivateEngine


@pytest.fixture
def worker(engine: PrivateEngine) -> Iterator[Worker]:
    """A worker's two sockets of the engine."""
    with running_engine_filter(engine.host, Policy(OWN)) as filtered:
        yield Worker(EngineSocket(filtered), EngineSocket(engine.host))
