"""Engines under the contract: the fake, the real one, and the real one behind the filter of unprivileged workers."""

from collections.abc import Iterator

import pytest

from deploy.engine_filter.bodies import Policy
from tests.fakes.engine import FakeEngine
from tests.services.engine import TINY_IMAGE, docker_engine
from tests.services.engine_address import ENGINE
from tests.services.engine_socket import running_engine_filter
from worker.engine.disk_engine import DiskEngine
from worker.engine.protocol import Engine, NetworkRequest


@pytest.fixture
def filtered_network() -> NetworkRequest | None:
    """The network that the filter permits; None: the engine's own bridge."""
    return None


# Nightly, because for each change most other tests with the real engine use it without its filter.
DIRECT = pytest.param("docker", marks=pytest.mark.nightly)


@pytest.fixture(params=["fake", DIRECT, "docker behind its filter"])
def engine(
    request: pytest.FixtureRequest, installation: str, filtered_network: NetworkRequest | None
) -> Iterator[Engine]:
    if request.param == "fake":
        fake = FakeEngine()
        fake.images = {TINY_IMAGE}
        yield fake
    else:
        with docker_engine(installation) as engine:
            if request.param == "docker":
                yield engine
            else:
                yield from _filtered(installation, filtered_network)


def _filtered(installation: str, network: NetworkRequest | None) -> Iterator[Engine]:
    with running_engine_filter(ENGINE, Policy(installation, network=network)) as host:
        engine = DiskEngine(host, installation)
        try:
            yield engine
        finally:
            engine.close()


@pytest.fixture
def another(engine: Engine, installation: str) -> Iterator[Engine]:
    """Another engine object with the same containers."""
    if isinstance(engine, FakeEngine):
        yield engine.connect()
    else:
        with docker_engine(installation) as another:
            yield another
