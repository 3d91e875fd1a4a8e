"""The claim in one statement writes the same rows as a claim in a transaction, and claims the same sandboxes."""

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest
from sqlmodel import SQLModel, col, select

from shared.changes.recorder import Change
from shared.clock import after, now
from shared.db.database import Database
from shared.models import ChangeEntry, Node, Sandbox, SandboxSpec, SandboxTransition
from shared.sandboxes import deadlines, specs
from shared.states import Desired, NodeStatus, Status
from shared.users import settings_store
from shared.warm_pool import start as sandbox_start
from tests.factories import SPEC_ID, VAULT, ApiUser, fill_columns, make_spec, make_user
from tests.interleaving import overlap

# The columns that differ in each row.
OWN = {"id", "owner_id", "sandbox_id", "row_id", "session_key", "session_key_digest", "boot_key"}


def claim(database: Database, owner: ApiUser, *, spec_id: str | None = SPEC_ID, **own: int | None) -> Sandbox | None:
    found = sandbox_start.start_in_one_statement(
        database, VAULT, owner_id=owner.id, spec_id=spec_id, due_at=after(5.0), own_deadlines=own
    )
    return found.sandbox if found else None


def claim_or_create(database: Database, owner: ApiUser, **own: int | None) -> Sandbox:
    with database.transaction() as session:
        spec = specs.get_spec(session, SPEC_ID)
        return sandbox_start.start(
            session, VAULT, owner_id=owner.id, spec=spec, due_at=after(5.0), own_deadlines=own
        ).sandbox


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_claim_does_not_wait_for_a_locked_spec(database: Database, owner: ApiUser, add: Callable[..., str]) -> None:
    pool = {add(), add()}
    with database.transaction() as session:
        session.get_one(SandboxSpec, SPEC_ID, with_for_update=True)
        claimed = claim(database, owner)
        assert claimed is not None
        assert {claimed.id, claim_or_create(database, owner).id} == pool


def is_postgresql(database: Database) -> bool:
    return database.engine.dialect.name == "postgresql"


def columns(row: SQLModel) -> dict[str, Any]:
    """The comparable columns, with each time replaced by whether there is one."""
    found = {name: value for name, value in row.model_dump().items() if name not in OWN}
    return {name: bool(value) if isinstance(value, datetime) else value for name, value in found.items()}


def written(database: Database, sandbox_id: str) -> list[dict[str, Any]]:
    """The comparable rows of a sandbox, its transitions and its change entries."""
    with database.reading() as session:
        row = session.get_one(Sandbox, sandbox_id)
        transitions = session.exec(select(SandboxTransition).where(SandboxTransition.sandbox_id == sandbox_id)).all()
        entries = session.exec(select(ChangeEntry).where(ChangeEntry.row_id == sandbox_id)).all()
    return [columns(found) for found in (row, *transitions, *entries)]


@pytest.mark.parametrize(
    "own", [{}, {"freeze_after_seconds": 60}, {"max_age_seconds": 0, "stop_after_seconds": 0}, {"max_age_seconds": 60}]
)
@pytest.mark.parametrize("aged", [False, True])
def test_one_statement_writes_the_same_as_a_transaction(
    database: Database, owner: ApiUser, add: Callable[..., str], own: dict[str, int | None], aged: bool
) -> None:
    other = make_user(database, "bob")
    add(), add()
    if aged:
        with database.transaction() as session:
            specs.set_deadlines(session, SPEC_ID, {"max_age_seconds": 3600})
    slow = claim_or_create(database, other, **own)
    quick = claim(database, owner, **own)  # type: ignore[arg-type]
    is_quick = is_postgresql(database) and not own.get("max_age_seconds") and (not aged or "max_age_seconds" in own)
    assert (quick is not None) == is_quick
    if quick is not None:
        assert written(database, quick.id) == written(database, slow.id)
        with database.reading() as session:
            row, spec = session.get_one(Sandbox, quick.id), session.get_one(SandboxSpec, SPEC_ID)
        assert row.model_dump() == quick.model_dump()
        assert deadlines.in_force(quick, spec) == deadlines.in_force(row, spec)


# Columns that prevent a claim, columns of the boot, and columns that are empty in a ready warm sandbox.
UNCLAIMABLE = {"owner_id", "lease_owner", "lease_until", "due_at"}
OF_BOOT = {"node_id", "boot_key"}
EMPTY = {
    "lost_generation",
    "reason",
    "detail",
    "pause_kind",
    "expires_at",
    "deadline_at",
    "deadline_does",
    "desired_reason",
}


def test_claim_clears_every_column_that_the_boot_did_not_set(
    database: Database, owner: ApiUser, add: Callable[..., str]
) -> None:
    """A claim must write each column that is added later, unless it is named above."""
    left = UNCLAIMABLE | OF_BOOT | EMPTY
    filled = {name: value for name, value in fill_columns(Sandbox, exposed_urls=[{}]).items() if name not in left}
    quick, slow = add(**filled), add(**filled)
    claimed = claim(database, owner) or claim_or_create(database, owner)
    others = {claimed.id, claim_or_create(database, owner).id}
    assert others == {quick, slow}
    with database.reading() as session:
        rows = [session.get_one(Sandbox, sandbox_id) for sandbox_id in others]
    assert [name for row in rows for name, value in filled.items() if getattr(row, name) == value] == []


def test_default_spec_is_found(database: Database, owner: ApiUser, add: Callable[..., str]) -> None:
    warm = add()
    make_spec(database, "another/image:1", warm_target=1, warm_most=1, position=7)
    found = claim(database, owner, spec_id=None)
    assert (found.id if found else None) == (warm if is_postgresql(database) else None)


def test_spec_of_the_settings_is_found_while_it_exists(
    database: Database, owner: ApiUser, add: Callable[..., str]
) -> None:
    default = add()
    make_spec(database, "another/image:1", warm_target=1, warm_most=1, position=7)
    preferred = add(spec_id="another/image:1")
    for named, expected in (("another/image:1", preferred), ("another/image:2", default)):
        with database.transaction() as session:
            settings = {"language": '"default_sandbox_spec_id":"x', "default_sandbox_spec_id": named}
            settings_store.change(session, VAULT, owner.id, settings)
        found = claim(database, owner, spec_id=None)
        assert (found.id if found else None) == (expected if is_postgresql(database) else None)
    add()
    other = claim(database, make_user(database, "bob"), spec_id=None)
    assert (other.spec_id if other else None) == (SPEC_ID if is_postgresql(database) else None)


@pytest.mark.parametrize("named", ["registry/bücher:1", 'a"b', "a\\b"])
def test_spec_with_an_escaped_name_is_not_mistaken_for_the_default(
    database: Database, owner: ApiUser, add: Callable[..., str], named: str
) -> None:
    add()
    make_spec(database, named, warm_target=1, warm_most=1, position=7)
    preferred = add(spec_id=named)
    with database.transaction() as session:
        settings_store.change(session, VAULT, owner.id, {"default_sandbox_spec_id": named})
    assert claim(database, owner, spec_id=None) is None  # the claim in a transaction reads the setting
    found = claim(database, owner, spec_id=named)
    assert (found.id if found else None) == (preferred if is_postgresql(database) else None)


@pytest.mark.parametrize(
    "columns",
    [
        {"status": Status.STARTING},
        {"desired": Desired.DELETED},
        {"desired": Desired.PAUSED},
        {"spec_revision": 0},
        {"due_at": now()},
        {"lease_owner": "w", "lease_until": after(10)},
        {"spec_id": "another/image:1"},
    ],
)
def test_sandbox_that_is_not_ready_or_not_idle_is_not_claimed(
    database: Database, owner: ApiUser, add: Callable[..., str], columns: dict[str, Any]
) -> None:
    add(**columns)
    assert claim(database, owner) is None


@pytest.mark.parametrize(
    "columns", [{"status": NodeStatus.LOST}, {"status": NodeStatus.CORDONED}, {"heartbeat_at": after(-60)}]
)
def test_sandboxes_of_a_node_that_is_not_ready_are_not_claimed(
    database: Database, owner: ApiUser, add: Callable[..., str], columns: dict[str, Any]
) -> None:
    add()
    with database.transaction() as session:
        node = session.exec(select(Node)).one()
        for name, value in columns.items():
            setattr(node, name, value)
    assert claim(database, owner) is None


def test_concurrent_claims_get_one_each(database: Database, owner: ApiUser, add: Callable[..., str]) -> None:
    ids = {add() for _ in range(6)}
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: claim(database, owner), range(12)))
    claimed = [sandbox.id for sandbox in found if sandbox is not None]
    assert len(claimed) == len(set(claimed))
    assert set(claimed) == (ids if is_postgresql(database) else set())
    with database.reading() as session:
        numbers = session.exec(select(ChangeEntry.number).order_by(col(ChangeEntry.number))).all()
    assert list(numbers) == list(range(1, len(claimed) + 1))


def test_claim_during_a_spec_change_precedes_the_change(
    database: Database, owner: ApiUser, add: Callable[..., str]
) -> None:
    """Before the change is committed, the claim gets a current sandbox. After it, no outdated sandbox is claimed."""
    pool = {add(), add()}
    _, found = overlap(
        database,
        lambda session: specs.change(session, SPEC_ID, {"memory_bytes": 1 << 30}),
        lambda _: claim(database, owner) if is_postgresql(database) else None,
    )
    assert found is None or found.id in pool
    assert (found is None) != is_postgresql(database)
    assert claim(database, owner) is None


def test_claim_is_published(database_url: str, database: Database, owner: ApiUser, add: Callable[..., str]) -> None:
    warm = add()
    published: list[Change] = []

    def publish(changed: Collection[Change]) -> None:
        published.extend(changed)

    publishing = Database(database_url, publish=publish)
    claim(publishing, owner)
    publishing.close()
    expected = [(owner.id, warm, Status.STARTING)] if is_postgresql(database) else []
    assert [(change.owner_id, change.row_id, change.status) for change in published] == expected
