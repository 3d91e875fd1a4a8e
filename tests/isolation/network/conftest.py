"""A node in a network namespace, and a second namespace with its LAN, the internet and a cloud's metadata service."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.isolation.network.scene import Machines, Scene, open_machines, open_scene
from tests.services.stores import SqliteStores


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """The machines."""
    with ExitStack() as stack:
        yield open_machines(stack, tmp_path_factory.mktemp("machines"))


@pytest.fixture
def scene(tmp_path: Path, sqlite_stores: SqliteStores, machines: Machines) -> Iterator[Scene]:
    """A node without rules, with three sandboxes."""
    with ExitStack() as stack:
        yield open_scene(stack, machines, stack.enter_context(sqlite_stores.fresh(tmp_path)))
