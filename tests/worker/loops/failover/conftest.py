"""Fixture of a clock that tests set."""

import pytest

from tests.worker.loops.failover.nodes import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()
