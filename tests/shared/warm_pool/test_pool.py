"""The warm pool in the store: claims, removals, refills and backoff."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlmodel import Session, select

from shared.clock import after, now
from shared.db.database import Database
from shared.leasing import leases
from shared.models import ChangeEntry, Node, Sandbox, SandboxSpec
from shared.sandboxes import lists as sandbox_lists
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes import specs
from shared.states import Desired, Reason, Status
from shared.warm_pool import pool as warm_pool
from shared.warm_pool.policy import OLD
from tests.factories import SPEC_ID, ApiUser, make_node
from tests.interleaving import overlap
from tests.shared.warm_pool.pools import LATER, claim, make_warm_sandbox_in, reconcile


def listed_for(database: Database, owner: ApiUser) -> list[str]:
    return [sandbox_lists.read_text(text)[0].id for text in sandbox_lists.search(database, owner.id, None, 10).items]


def test_claimed_sandbox_is_new_to_its_owner(database: Database, owner: ApiUser, add: Callable[..., str]) -> None:
    with database.reading() as session:
        before = session.get_one(Sandbox, add(created_at=now() - OLD / 2))
    with database.transaction() as session:
        claimed = claim(session, owner, max_age_seconds=60)
    assert claimed.id == before.id
    assert (claimed.owner_id, claimed.status, claimed.desired) == (owner.id, Status.STARTING, Desired.RUNNING)
    assert claimed.generation == before.generation + 1 != claimed.observed_generation
    assert claimed.created_at > before.created_at
    assert claimed.expires_at is not None
    assert claimed.expires_at > now()
    assert claimed.due_at is not None
    assert (claimed.ready_at, claimed.exposed_urls) == (None, None)
    assert claimed.session_key_digest != before.session_key_digest
    assert listed_for(database, owner) == [claimed.id]


def test_claim_is_in_the_change_feed_and_pool_changes_are_not(
    database: Database, owner: ApiUser, add: Callable[..., str]
) -> None:
    warm = add()
    reconcile(database)
    with database.transaction() as session:
        claim(session, owner)
    with database.reading() as session:
        entries = session.exec(select(ChangeEntry)).all()
    assert [(entry.owner_id, entry.row_id, entry.status) for entry in entries] == [(owner.id, warm, "STARTING")]


def test_warm_sandbox_is_not_listed(database: Database, owner: ApiUser, add: Callable[..., str]) -> None:
    warm = add()
    assert listed_for(database, owner) == []
    with database.reading() as session:
        assert sandbox_queries.get_many(session, [warm], owner.id) == [None]


@pytest.mark.parametrize(
    "columns",
    [
        {"status": Status.STARTING},
        {"status": Status.ERROR, "reason": Reason.EXIT_CODE},
        {"desired": Desired.DELETED},
        {"spec_revision": 0},
        {"due_at": now()},
        {"lease_owner": "w", "lease_until": after(10)},
        {"spec_id": "another/image:1"},
    ],
)
def test_sandbox_that_is_not_ready_or_not_idle_is_not_claimed(
    database: Database, owner: ApiUser, add: Callable[..., str], columns: dict[str, Any]
) -> None:
    warm = add(**columns)
    with database.transaction() as session:
        assert claim(session, owner).id != warm


def test_two_claims_get_two_sandboxes(database: Database, owner: ApiUser, add: Callable[..., str]) -> None:
    pool = {add(), add()}
    claimed: list[str] = []

    def start(session: Session) -> None:
        claimed.append(claim(session, owner).id)

    overlap(database, start, start)
    assert set(claimed) == pool


def test_second_claim_of_the_last_sandbox_starts_cold(
    database: Database, owner: ApiUser, add: Callable[..., str]
) -> None:
    warm = add()
    claimed: list[str] = []

    def start(session: Session) -> None:
        claimed.append(claim(session, owner).id)

    overlap(database, start, start)
    assert len(set(claimed)) == 2
    assert warm in claimed


def test_warm_sandbox_is_claimed_or_removed(database: Database, owner: ApiUser, add: Callable[..., str]) -> None:
    warm = add()
    claimed: list[str] = []
    removed: list[str] = []

    def start(session: Session) -> None:
        claimed.append(claim(session, owner).id)

    def remove(session: Session) -> None:
        removed.extend(row.id for row in warm_pool.retire(session, [warm], due_at=after(LATER)))

    overlap(database, start, remove)
    assert (warm in claimed) != (warm in removed)


def test_pool_is_filled_by_one_worker(database: Database, pooled: SandboxSpec) -> None:
    created: list[str] = []

    def fill(session: Session) -> None:
        while (warm := make_warm_sandbox_in(session)) is not None:
            created.append(warm.id)

    overlap(database, fill, fill)
    assert len(created) == pooled.warm_target


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_refill_does_not_block_cold_starts(database: Database, pooled: SandboxSpec) -> None:
    with database.transaction() as session:
        assert make_warm_sandbox_in(session) is not None
        with database.transaction() as other:
            specs.lock_shared(other, pooled)
            assert make_warm_sandbox_in(other) is None, "another worker fills the pool"


def test_concurrent_boots_are_limited(database: Database, pooled: SandboxSpec) -> None:
    assert len(reconcile(database, boots=1)) == 1
    assert reconcile(database, boots=1) == []
    with database.reading() as session:
        assert warm_pool.pools_to_reconcile(session) == [pooled.id]
    assert len(reconcile(database, boots=2)) == 1


def test_no_sandbox_boots_on_a_node_where_an_owner_waits_for_a_claim(
    database: Database, owner: ApiUser, add: Callable[..., str]
) -> None:
    add()
    with database.transaction() as session:
        claimed = claim(session, owner).id
    assert reconcile(database) == []
    make_node(database, "node-b")
    [created, _] = reconcile(database)
    with database.transaction() as session:
        assert session.get_one(Sandbox, created[0]).node_id == "node-b"
        session.get_one(Sandbox, claimed).created_at = after(-60)
        session.get_one(Node, "node-b").capacity = 0
        specs.change(session, SPEC_ID, {"warm_target": 3})
    assert len(reconcile(database)) == 1, "a claim past its grace period holds up no refill"


def test_no_sandbox_boots_while_a_worker_has_leased_a_claim(
    database: Database, owner: ApiUser, add: Callable[..., str]
) -> None:
    add()
    with database.transaction() as session:
        claimed = claim(session, owner)
        claimed.due_at, claimed.lease_until = None, after(LATER)
    assert reconcile(database) == []


@pytest.mark.parametrize("columns", [{"ready_at": now()}, {"status": Status.ERROR}, {"due_at": None}])
def test_pool_is_refilled_when_no_owner_waits(
    database: Database, owner: ApiUser, add: Callable[..., str], columns: dict[str, Any]
) -> None:
    add()
    with database.transaction() as session:
        claimed = claim(session, owner)
        for name, value in columns.items():
            setattr(claimed, name, value)
    assert len(reconcile(database)) == 2


def test_owner_gets_the_slot_of_a_warm_sandbox(database: Database, owner: ApiUser, add: Callable[..., str]) -> None:
    add(spec_id="another/image:1")
    with database.transaction() as session:
        session.get_one(Node, "node-a").capacity = 1
    assert reconcile(database) == []
    with database.transaction() as session:
        assert claim(session, owner).node_id == "node-a"


def test_pool_backs_off_after_a_failure_until_the_next_success(database: Database, add: Callable[..., str]) -> None:
    failed = add(status=Status.ERROR, reason=Reason.EXIT_CODE, detail="exit code 3")
    assert reconcile(database) == [(failed, Desired.DELETED)]
    with database.reading() as session:
        spec = specs.get_spec(session, SPEC_ID)
        assert (spec.warm_failures, spec.warm_detail) == (1, "exit_code: exit code 3")
        assert warm_pool.pools_to_reconcile(session) == []
    with database.transaction() as session:
        specs.get_spec(session, SPEC_ID).warm_failed_at = after(-3600)
    add(status_changed_at=now())
    assert len(reconcile(database)) == 1
    with database.reading() as session:
        assert specs.get_spec(session, SPEC_ID).warm_failures == 0


def test_failure_of_a_pool_of_one_is_forgotten_after_its_next_success(
    database: Database, add: Callable[..., str]
) -> None:
    """The pool is full then: it has nothing to start or to remove."""
    with database.transaction() as session:
        spec = specs.get_spec(session, SPEC_ID)
        spec.warm_target, spec.warm_failures, spec.warm_failed_at, spec.warm_detail = 1, 5, after(-3600), "exit_code: 3"
    add(status_changed_at=now())
    with database.reading() as session:
        assert warm_pool.pools_to_reconcile(session) == [SPEC_ID]
    assert reconcile(database) == []
    with database.reading() as session:
        spec = specs.get_spec(session, SPEC_ID)
        assert (spec.warm_failures, spec.warm_failed_at, spec.warm_detail) == (0, None, None)
        assert warm_pool.pools_to_reconcile(session) == []


def test_leased_warm_sandbox_is_not_claimed(database: Database, owner: ApiUser, add: Callable[..., str]) -> None:
    """The worker can't overwrite a claim with an older observed state: the lease prevents the claim."""
    warm = add(due_at=now())
    with database.transaction() as session:
        leased = leases.claim(session, Sandbox, warm, "worker", 10)
    assert leased is not None
    with database.transaction() as session:
        assert claim(session, owner).id != warm
    with database.transaction() as session:
        leases.release(session, Sandbox, warm, leased.fence)
    with database.transaction() as session:
        assert claim(session, owner).id == warm
