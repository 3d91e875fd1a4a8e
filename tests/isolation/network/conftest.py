"""A node in a network namespace, and behind it another one: its LAN, the internet, and a cloud's metadata service."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.isolation.network.scene import Scene, open_scene
from tests.services.stores import SqliteStores


@pytest.fixture
def scene(tmp_path: Path, sqlite_stores: SqliteStores) -> Iterator[Scene]:
    """A node without rules, and its three sandboxes."""
    with ExitStack() as stack:
        yield open_scene(stack, tmp_path, stack.enter_context(sqlite_stores.fresh(tmp_path)))
