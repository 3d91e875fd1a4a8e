"""Installations whose processes are killed, with their own engine, on either database."""

from collections.abc import Iterator

import pytest

from tests.drills.faults.lanes import Lanes
from tests.drills.faults.recordings import Recordings
from tests.drills.faults.specs import SPECS
from tests.services.engine import TINY_IMAGE
from tests.services.private_engine import PrivateEngine, running_private_engine
from tests.services.registry import Registry, running_registry
from tests.services.stores import Stores
from tests.services.valkey import Valkey

# More lanes than cores, because a lane mostly waits: for a lease to expire, for a container to stop.
WIDTH = 6


@pytest.fixture(scope="session")
def engine() -> Iterator[PrivateEngine]:
    """An engine with the tiny image under all its names."""
    with running_private_engine([TINY_IMAGE]) as engine:
        for image in SPECS:
            engine.docker("tag", TINY_IMAGE, image)
        yield engine


@pytest.fixture(scope="session")
def registry() -> Iterator[Registry]:
    """A registry that has the tiny image."""
    with running_registry(TINY_IMAGE) as registry:
        yield registry


# Session scope lets pytest order the tests of all modules by database, so each is set up once.
@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def stores(request: pytest.FixtureRequest) -> Stores:
    """Both kinds of database."""
    found: Stores = request.getfixturevalue({"sqlite": "sqlite_stores", "postgresql": "postgres_stores"}[request.param])
    return found


@pytest.fixture(scope="session")
def lanes(
    engine: PrivateEngine,
    registry: Registry,
    stores: Stores,
    valkey_server: Valkey,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Lanes]:
    """Several installations at once."""
    lanes = Lanes(engine, registry, stores, valkey_server, tmp_path_factory.mktemp("lanes"), WIDTH)
    yield lanes
    lanes.close()


@pytest.fixture(scope="session")
def recordings(lanes: Lanes, request: pytest.FixtureRequest) -> Recordings:
    """The points that operations reach on this database, shared by all tests; each operation is recorded once."""
    return Recordings(lanes, thorough=bool(request.config.getoption("--all-points", default=False)))
