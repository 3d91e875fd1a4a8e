"""The testbed of the attacks, shared by the module."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.isolation.attack import Attack
from tests.isolation.attacks import ATTACKS
from tests.isolation.testbed import AttackTestbed, opened_testbed
from tests.isolation.verdicts import UNDECIDABLE
from tests.services.deployment import deployed
from tests.services.engine import SANDBOX_IMAGE, TINY_IMAGE, name_installation
from tests.services.private_engine import PrivateEngine
from tests.services.stores import SqliteStores
from tests.services.valkey import Valkey


@pytest.fixture(scope="module")
def testbed(
    request: pytest.FixtureRequest,
    dedicated_engine: PrivateEngine,
    sqlite_stores: SqliteStores,
    valkey_server: Valkey,
) -> Iterator[AttackTestbed]:
    """The testbed."""
    engine = dedicated_engine
    valkey_server.start()
    valkey_server.flush()
    options: dict[str, Any] = {"broker_url": valkey_server.url, "installation": name_installation()}
    with (
        sqlite_stores.fresh() as database_url,
        deployed(engine, SANDBOX_IMAGE, TINY_IMAGE, database_url=database_url, **options) as service,
        opened_testbed(service, engine, _selected(request.session.items)) as found,
    ):
        yield found
    engine.clear()


def _selected(items: Sequence[pytest.Item]) -> list[Attack]:
    """The attacks of the selected tests, and the undecidable ones, which one test checks together."""
    found = [item.callspec.params.get("attack") for item in items if hasattr(item, "callspec")]
    return [one for one in ATTACKS if one in found or one.id in UNDECIDABLE]
