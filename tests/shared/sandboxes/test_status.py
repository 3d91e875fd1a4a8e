"""Writing a sandbox's status, over every pair of states."""

from dataclasses import fields

import pytest
from sqlmodel import Session

from shared.clock import now
from shared.db.database import Database
from shared.errors import IllegalTransition, LeaseLost
from shared.models import Sandbox, SandboxTransition
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes import status as sandbox_status
from shared.sandboxes.status import ObservedState
from shared.states import TRANSITIONS, PauseKind, Reason, Status
from tests.factories import ApiUser, make_sandbox
from tests.rows import as_stored

URLS = [{"name": "AGENT_SERVER", "url": "http://127.0.0.1:18001", "port": 8000}]


def history(database: Database, sandbox: Sandbox) -> list[SandboxTransition]:
    with database.reading() as session:
        return sandbox_queries.transitions(session, sandbox.id)


def write_state(
    database: Database, sandbox: Sandbox, state: ObservedState, observed_generation: int | None = None
) -> bool:
    with database.transaction() as session:
        return sandbox_status.set_status(session, sandbox, state, observed_generation=observed_generation)


@pytest.mark.parametrize("before", sorted(set(Status) - {Status.DELETED}))
def test_legal_transition_writes_the_row_and_its_history(database: Database, user: ApiUser, before: Status) -> None:
    assert TRANSITIONS[before], "the loop below would test nothing"
    for after in TRANSITIONS[before]:
        sandbox = make_sandbox(database, user, status=before)
        assert write_state(database, sandbox, ObservedState(after, Reason.EXIT_CODE, "why"))
        stored = as_stored(database, sandbox)
        assert (stored.status, stored.reason, stored.detail) == (after, Reason.EXIT_CODE, "why")
        assert [(row.from_status, row.to_status, row.reason) for row in history(database, sandbox)] == [
            (before, after, Reason.EXIT_CODE)
        ]


def test_written_state_is_read_back(database: Database, user: ApiUser) -> None:
    state = ObservedState(Status.PAUSED, Reason.PAUSED_OUTSIDE, "why", PauseKind.FROZEN, URLS)
    unset = [field.name for field in fields(state) if field.compare and getattr(state, field.name) is None]
    assert unset == [], "a field without a value here would be lost unnoticed"
    sandbox = make_sandbox(database, user)
    write_state(database, sandbox, state)
    assert sandbox_status.read_state(as_stored(database, sandbox)) == state


def test_claim_of_a_warm_sandbox_is_a_legal_transition() -> None:
    assert Status.STARTING in TRANSITIONS[Status.RUNNING], "a claim writes this one without `set_status`"


@pytest.mark.parametrize("before", Status)
def test_illegal_transition_raises_and_writes_nothing(database: Database, user: ApiUser, before: Status) -> None:
    for after in set(Status) - TRANSITIONS[before] - {before}:
        sandbox = make_sandbox(database, user, status=before)
        stored = as_stored(database, sandbox).model_dump()
        with pytest.raises(IllegalTransition, match=f"{before} → {after}"):
            write_state(database, sandbox, ObservedState(after))
        assert as_stored(database, sandbox).model_dump() == stored
        assert sandbox.status == before
        assert history(database, sandbox) == []


@pytest.mark.parametrize("status", Status)
def test_new_detail_of_the_same_status_is_written_without_history(
    database: Database, user: ApiUser, status: Status
) -> None:
    sandbox = make_sandbox(database, user, status=status)
    kind = PauseKind(sandbox.pause_kind) if sandbox.pause_kind else None
    assert not write_state(database, sandbox, ObservedState(status, detail="still so", pause_kind=kind))
    assert as_stored(database, sandbox).detail == "still so"
    assert history(database, sandbox) == []


def test_transition_from_paused_to_stopped_is_in_the_history(database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user, status=Status.PAUSED)
    for _ in range(2):
        write_state(database, sandbox, ObservedState(Status.PAUSED, Reason.IDLE_STOPPED, pause_kind=PauseKind.STOPPED))
    assert [(row.from_status, row.to_status, row.pause_kind, row.reason) for row in history(database, sandbox)] == [
        (Status.PAUSED, Status.PAUSED, PauseKind.STOPPED, Reason.IDLE_STOPPED)
    ]


def test_deleted_status_is_final() -> None:
    assert TRANSITIONS[Status.DELETED] == frozenset()
    assert [status for status in Status if Status.DELETED in TRANSITIONS[status]] == [Status.DELETING]


def test_every_state_but_the_last_leads_to_deleting() -> None:
    assert all(Status.DELETING in TRANSITIONS[status] for status in set(Status) - {Status.DELETING, Status.DELETED})


def test_transition_table_names_every_status() -> None:
    assert set(TRANSITIONS) == set(Status)


def test_transition_with_a_stale_fencing_token_writes_nothing(database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user, status=Status.STARTING, fence=7)
    sandbox.fence = 6
    with pytest.raises(LeaseLost):
        write_state(database, sandbox, ObservedState(Status.RUNNING))
    assert as_stored(database, sandbox).status == Status.STARTING
    assert sandbox.status == Status.STARTING
    assert history(database, sandbox) == []


def test_lease_is_not_released_with_a_newer_generation(database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user, status=Status.STARTING, generation=2, lease_until=now())
    stored = as_stored(database, sandbox)
    sandbox.generation = 1
    with pytest.raises(LeaseLost), database.transaction() as session:
        sandbox_status.set_status(
            session, sandbox, ObservedState(Status.RUNNING), observed_generation=1, releases_lease=True
        )
    assert as_stored(database, sandbox) == stored


def test_transition_and_its_history_are_one_write(database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user, status=Status.STARTING)

    def fail(session: Session) -> None:
        sandbox_status.set_status(session, sandbox, ObservedState(Status.RUNNING))
        raise RuntimeError("the worker dies before its commit")

    with pytest.raises(RuntimeError), database.transaction() as session:
        fail(session)
    assert as_stored(database, sandbox).status == Status.STARTING
    assert history(database, sandbox) == []


def test_history_has_a_limited_length(
    database: Database, user: ApiUser, other_user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_status, "MAX_TRANSITIONS", 4)
    monkeypatch.setattr(sandbox_status, "CUT_EVERY", 3)
    sandbox, other = make_sandbox(database, user), make_sandbox(database, other_user)
    write_state(database, other, ObservedState(Status.PAUSED, pause_kind=PauseKind.FROZEN))
    for number in range(20):
        kind = PauseKind.FROZEN if number % 2 == 0 else None
        write_state(database, sandbox, ObservedState(Status.PAUSED if kind else Status.RUNNING, pause_kind=kind))
    rows = history(database, sandbox)
    assert 4 <= len(rows) <= 6
    assert rows[-1].to_status == Status.RUNNING
    assert [row.from_status for row in rows[1:]] == [row.to_status for row in rows[:-1]]
    assert len(history(database, other)) == 1


def test_newest_part_of_a_long_history_is_read(
    database: Database, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_queries, "MAX_TRANSITIONS", 3)
    sandbox = make_sandbox(database, user)
    with database.transaction() as session:
        for number in range(5):
            session.add(SandboxTransition(sandbox_id=sandbox.id, to_status=Status.RUNNING, reason=str(number)))
            session.flush()
    assert [row.reason for row in history(database, sandbox)] == ["2", "3", "4"]


def test_ready_at_keeps_the_time_of_the_first_run(database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user, status=Status.STARTING)
    assert as_stored(database, sandbox).ready_at is None
    write_state(database, sandbox, ObservedState(Status.RUNNING, exposed_urls=URLS))
    first = as_stored(database, sandbox)
    assert first.ready_at is not None
    assert first.exposed_urls == URLS
    write_state(database, sandbox, ObservedState(Status.PAUSED, pause_kind=PauseKind.STOPPED))
    write_state(database, sandbox, ObservedState(Status.RUNNING))
    assert as_stored(database, sandbox).ready_at == first.ready_at


def test_observed_state_replaces_all_fields_of_the_previous_one(database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user, status=Status.ERROR, exposed_urls=URLS)
    write_state(database, sandbox, ObservedState(Status.PAUSED, pause_kind=PauseKind.FROZEN))
    stored = as_stored(database, sandbox)
    assert (stored.reason, stored.detail, stored.exposed_urls) == (None, None, None)
    assert stored.pause_kind == PauseKind.FROZEN


def test_observed_generation_is_the_reconciled_generation(database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user, status=Status.STARTING, generation=3, attempt=2)
    write_state(database, sandbox, ObservedState(Status.STARTING, detail="pulling the image"))
    assert (as_stored(database, sandbox).observed_generation, as_stored(database, sandbox).attempt) == (0, 2)
    write_state(database, sandbox, ObservedState(Status.RUNNING), observed_generation=3)
    assert (as_stored(database, sandbox).observed_generation, as_stored(database, sandbox).attempt) == (3, 0)
    assert sandbox.observed_generation == 3
