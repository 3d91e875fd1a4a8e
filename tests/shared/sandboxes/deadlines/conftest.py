"""The spec of the sandboxes under test."""

import pytest

from shared.db.database import Database
from tests.factories import make_spec
from tests.shared.sandboxes.deadlines.sandboxes import CHAIN


@pytest.fixture(autouse=True)
def _spec(database: Database) -> None:
    make_spec(database, **CHAIN)
