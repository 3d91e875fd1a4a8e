"""A model for the user, without which no start begins."""

import pytest

from shared.db.database import Database
from shared.users import settings_store
from tests.factories import (
    VAULT,
    ApiUser,
)


@pytest.fixture(autouse=True)
def _model(database: Database, user: ApiUser) -> None:
    with database.transaction() as session:
        settings_store.change(session, VAULT, user.id, {"llm_api_key": "sk-test", "llm_model": "openai/test"})
