"""A node in a network namespace, and a second namespace with its LAN, the internet and a cloud's metadata service."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.isolation.network.testbed import Machines, NetworkTestbed, open_machines, open_testbed
from tests.services.stores import SqliteStores


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """The machines."""
    with ExitStack() as stack:
        yield open_machines(stack, tmp_path_factory.mktemp("machines"))


@pytest.fixture
def testbed(sqlite_stores: SqliteStores, machines: Machines) -> Iterator[NetworkTestbed]:
    """A node without rules, with three sandboxes."""
    with ExitStack() as stack:
        yield open_testbed(stack, machines, stack.enter_context(sqlite_stores.fresh()))
