"""Engines whose contract is tested: the fake and the real one."""

from collections.abc import Iterator

import pytest

from tests.fakes.engine import FakeEngine
from tests.services.engine import TINY_IMAGE, docker_engine
from worker.engine.protocol import Engine


@pytest.fixture(params=["fake", "docker"])
def engine(request: pytest.FixtureRequest, installation: str) -> Iterator[Engine]:
    if request.param == "fake":
        fake = FakeEngine()
        fake.images = {TINY_IMAGE}
        yield fake
    else:
        with docker_engine(installation) as engine:
            yield engine


@pytest.fixture
def another(engine: Engine, installation: str) -> Iterator[Engine]:
    """Another engine object with the same containers."""
    if isinstance(engine, FakeEngine):
        yield engine.connect()
    else:
        with docker_engine(installation) as another:
            yield another
