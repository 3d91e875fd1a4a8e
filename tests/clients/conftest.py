"""One service for all tests of a module, because each start of a client takes seconds."""

from collections.abc import Iterator

import pytest

from tests.clients.site import Site, running_site
from tests.services.stores import SqliteStores
from tests.services.valkey import Valkey


@pytest.fixture(scope="module")
def site(
    sqlite_stores: SqliteStores, valkey_server: Valkey, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """The service, the clients and the user Alice."""
    valkey_server.start()
    valkey_server.flush()
    with running_site(sqlite_stores, valkey_server, tmp_path_factory.mktemp("site")) as site:
        yield site
