"""A model for the user, without which no start begins."""

import pytest

from shared.database import Database
from shared.store import user_settings
from tests.factories import (
    VAULT,
    Person,
)


@pytest.fixture(autouse=True)
def _model(database: Database, user: Person) -> None:
    with database.transaction() as session:
        user_settings.change(session, VAULT, user.id, {"llm_api_key": "sk-test", "llm_model": "openai/test"})
