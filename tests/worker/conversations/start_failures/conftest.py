"""A user with settings."""

import pytest

from tests.factories import ApiUser
from tests.worker.scenarios import (
    configure,
)
from worker.context import WorkerContext


@pytest.fixture(autouse=True)
def _settings(context: WorkerContext, user: ApiUser) -> None:
    configure(context, user)
