"""One service for all tests of a module, because each start of a client takes seconds."""

from collections.abc import Iterator

import pytest

from tests import effort
from tests.clients.site import Site, running_site
from tests.services.stores import SqliteStores
from tests.services.valkey import Valkey

HERE, ELSEWHERE = "here", "elsewhere"
# The location of the sandboxes, by test module. For each change, one client uses a second node; at night, each client
# uses both nodes.
NODES = {"tests.clients.test_typescript": (ELSEWHERE,)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of each client with sandboxes at these locations."""
    if "site" in metafunc.fixturenames:
        here = NODES.get(metafunc.module.__name__, (HERE,))
        nodes = effort.choose(quick=here, change=here, thorough=(HERE, ELSEWHERE))
        metafunc.parametrize("site", nodes, indirect=True, scope="module")


@pytest.fixture(scope="module")
def site(
    request: pytest.FixtureRequest,
    sqlite_stores: SqliteStores,
    valkey_server: Valkey,
) -> Iterator[Site]:
    """The service, the clients and the user Alice."""
    is_elsewhere = request.param == ELSEWHERE
    valkey_server.start()
    valkey_server.flush()
    with running_site(sqlite_stores, valkey_server, elsewhere=is_elsewhere) as site:
        yield site
