"""A warm pool in the database."""

from collections.abc import Callable
from typing import Any

import pytest

from shared.db.database import Database
from shared.models import SandboxSpec
from tests.factories import VAULT, ApiUser, make_node, make_sandbox, make_spec, make_user


@pytest.fixture
def owner(database: Database) -> ApiUser:
    """A user without sandboxes or conversations."""
    return make_user(database, "alice")


@pytest.fixture
def pooled(database: Database) -> SandboxSpec:
    """A spec with a warm pool of two sandboxes, and a node for them."""
    make_node(database)
    return make_spec(database, warm_target=2, warm_most=3)


@pytest.fixture
def add(database: Database, owner: ApiUser, pooled: SandboxSpec) -> Callable[..., str]:
    """Add a warm sandbox, ready unless the columns differ, and return its id."""

    def add(**columns: Any) -> str:
        mine: dict[str, Any] = {"owner_id": None, "boot_key": VAULT.encrypt("boot"), "spec_revision": pooled.revision}
        return make_sandbox(database, owner, **(mine | columns)).id

    return add
