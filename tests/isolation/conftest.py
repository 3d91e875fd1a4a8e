"""The scene of the attacks, once for the folder."""

from collections.abc import Iterator

import pytest

from shared.sandboxes import specs
from tests.isolation.attacks import ATTACKS
from tests.isolation.scene import LIMITS, Scene, opened_scene
from tests.services.deployment import deployed
from tests.services.engine import SANDBOX_IMAGE, TINY_IMAGE
from tests.services.private_engine import PrivateEngine
from tests.services.stores import SqliteStores
from tests.services.valkey import Valkey


@pytest.fixture(scope="module")
def scene(
    engine_of_our_own: PrivateEngine,
    sqlite_stores: SqliteStores,
    valkey_server: Valkey,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scene]:
    """The scene."""
    engine = engine_of_our_own
    valkey_server.start()
    valkey_server.flush()
    with (
        sqlite_stores.fresh(tmp_path_factory.mktemp("isolation")) as database_url,
        deployed(engine, SANDBOX_IMAGE, TINY_IMAGE, database_url=database_url, broker_url=valkey_server.url) as service,
    ):
        with service.database.transaction() as session:
            specs.change(session, SANDBOX_IMAGE, LIMITS)
        with opened_scene(service, engine, ATTACKS) as found:
            yield found
    engine.clear()
