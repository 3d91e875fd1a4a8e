"""A clock that a test turns."""

import pytest

from tests.worker.lost_nodes.nodes import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()
