"""Resume on traffic: concurrent requests start one generation."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlmodel import Session

from shared.clock import now
from shared.db.database import Database
from shared.models import Sandbox
from shared.sandboxes import access as sandbox_access
from shared.sandboxes import desired_state
from shared.sandboxes import queries as sandbox_queries
from shared.settings import NO_QUOTAS, Quotas
from shared.states import Desired, Status
from tests.factories import ApiUser, make_sandbox
from tests.interleaving import overlap
from tests.rows import as_stored


@pytest.fixture(params=[NO_QUOTAS, Quotas(running=1)], ids=["no quotas", "quotas"])
def limits(request: pytest.FixtureRequest) -> Quotas:
    """A user's quotas, which leave room for one running sandbox."""
    quotas: Quotas = request.param
    return quotas


@pytest.fixture
def paused_sandbox(database: Database, user: ApiUser) -> Sandbox:
    """A paused sandbox."""
    return make_sandbox(database, user, status=Status.PAUSED)


@pytest.fixture
def wake(paused_sandbox: Sandbox, user: ApiUser, limits: Quotas) -> Callable[[Session], bool]:
    """Return a function that resumes the sandbox if it is paused, and returns whether it was."""

    def wake(session: Session) -> bool:
        return sandbox_access.resume(
            session, paused_sandbox.id, user.id, limits, due_at=now(), only_paused=True
        ).changed

    return wake


def setting(sandbox: Sandbox, desired: Desired) -> Callable[[Session], Any]:
    def act(session: Session) -> None:
        desired_state.set_desired(
            session, sandbox_queries.get(session, sandbox.id, sandbox.owner_id or "", lock=True), desired, due_at=now()
        )

    return act


def test_concurrent_traffic_starts_one_generation(
    database: Database, paused_sandbox: Sandbox, wake: Callable[[Session], bool]
) -> None:
    assert overlap(database, wake, wake) == (True, False)
    row = as_stored(database, paused_sandbox)
    assert (row.desired, row.generation) == (Desired.RUNNING, 2)


def test_traffic_during_a_resume_starts_no_generation(
    database: Database, paused_sandbox: Sandbox, wake: Callable[[Session], bool]
) -> None:
    assert overlap(database, setting(paused_sandbox, Desired.RUNNING), wake) == (None, False)
    assert as_stored(database, paused_sandbox).generation == 2


def test_traffic_after_a_pause_resumes(
    database: Database, paused_sandbox: Sandbox, wake: Callable[[Session], bool]
) -> None:
    assert overlap(database, setting(paused_sandbox, Desired.PAUSED), wake) == (None, True)
    row = as_stored(database, paused_sandbox)
    assert (row.desired, row.generation) == (Desired.RUNNING, 3)


def test_pause_after_traffic_wins(database: Database, paused_sandbox: Sandbox, wake: Callable[[Session], bool]) -> None:
    assert overlap(database, wake, setting(paused_sandbox, Desired.PAUSED)) == (True, None)
    row = as_stored(database, paused_sandbox)
    assert (row.desired, row.generation) == (Desired.PAUSED, 3)
