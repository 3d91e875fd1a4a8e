"""The warm pool in the store: who gets a member, and that nobody gets another's."""

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
from shared.states import Desired, NodeStatus, Reason, Status
from shared.warm_pool import pool as warm_pool
from shared.warm_pool.policy import OLD
from tests.factories import SPEC_ID, VAULT, Person, make_node
from tests.interleaving import overlap

LATER = 5.0


def claim(session: Session, owner: Person, **own: int | None) -> Sandbox:
    spec = specs.get_spec(session, SPEC_ID)
    return warm_pool.claim_or_create(
        session, VAULT, owner_id=owner.id, spec=spec, due_at=after(LATER), own_deadlines=own
    )


def tend(database: Database, boots: int = 10) -> list[tuple[str, str]]:
    """As a sweep does: each member in a transaction of its own."""
    with database.transaction() as session:
        wished = warm_pool.retire_useless(session, SPEC_ID, due_at=after(LATER))
    while (made := make_warm_sandbox(database, boots)) is not None:
        wished.append(made)
    return [(row.id, row.desired) for row in wished]


def make_warm_sandbox(database: Database, boots: int) -> Sandbox | None:
    with database.transaction() as session:
        return make_member_in(session, boots)


def make_member_in(session: Session, boots: int = 10) -> Sandbox | None:
    return warm_pool.make_warm_sandbox(session, VAULT, SPEC_ID, boots=boots, due_at=after(LATER))


def shown_to(database: Database, owner: Person) -> list[str]:
    return [sandbox_lists.read_text(text)[0].id for text in sandbox_lists.search(database, owner.id, None, 10).items]


def test_a_claim_is_a_new_sandbox_to_its_owner(database: Database, owner: Person, add: Callable[..., str]) -> None:
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
    assert shown_to(database, owner) == [claimed.id]


def test_a_claim_is_told_and_what_happens_to_members_is_not(
    database: Database, owner: Person, add: Callable[..., str]
) -> None:
    member = add()
    tend(database)
    with database.transaction() as session:
        claim(session, owner)
    with database.reading() as session:
        entries = session.exec(select(ChangeEntry)).all()
    assert [(entry.owner_id, entry.row_id, entry.status) for entry in entries] == [(owner.id, member, "STARTING")]


def test_a_member_is_nobodys(database: Database, owner: Person, add: Callable[..., str]) -> None:
    member = add()
    assert shown_to(database, owner) == []
    with database.reading() as session:
        assert sandbox_queries.get_many(session, [member], owner.id) == [None]


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
def test_member_that_is_not_ready_and_at_rest_is_not_claimed(
    database: Database, owner: Person, add: Callable[..., str], columns: dict[str, Any]
) -> None:
    member = add(**columns)
    with database.transaction() as session:
        assert claim(session, owner).id != member


@pytest.mark.parametrize(
    "columns", [{"status": NodeStatus.LOST}, {"status": NodeStatus.CORDONED}, {"heartbeat_at": after(-60)}]
)
def test_members_of_a_node_that_takes_none_are_not_claimed_and_go(
    database: Database, owner: Person, add: Callable[..., str], columns: dict[str, Any]
) -> None:
    member = add(node_id="node-b")
    with database.transaction() as session:
        for name, value in columns.items():
            setattr(session.get_one(Node, "node-b"), name, value)
    with database.transaction() as session:
        assert claim(session, owner).id != member
    assert (member, Desired.DELETED) in tend(database)


def test_two_who_claim_at_once_get_two_members(database: Database, owner: Person, add: Callable[..., str]) -> None:
    pool = {add(), add()}
    claimed: list[str] = []

    def start(session: Session) -> None:
        claimed.append(claim(session, owner).id)

    overlap(database, start, start)
    assert set(claimed) == pool


def test_last_member_claimed_twice_starts_one_cold(database: Database, owner: Person, add: Callable[..., str]) -> None:
    member = add()
    claimed: list[str] = []

    def start(session: Session) -> None:
        claimed.append(claim(session, owner).id)

    overlap(database, start, start)
    assert len(set(claimed)) == 2
    assert member in claimed


def test_a_member_is_claimed_or_retired(database: Database, owner: Person, add: Callable[..., str]) -> None:
    member = add()
    claimed: list[str] = []
    retired: list[str] = []

    def start(session: Session) -> None:
        claimed.append(claim(session, owner).id)

    def retire(session: Session) -> None:
        retired.extend(row.id for row in warm_pool.retire(session, [member], due_at=after(LATER)))

    overlap(database, start, retire)
    assert (member in claimed) != (member in retired)


def test_a_pool_is_filled_by_one_hand(database: Database, pooled: SandboxSpec) -> None:
    made: list[str] = []

    def fill(session: Session) -> None:
        while (member := make_member_in(session)) is not None:
            made.append(member.id)

    overlap(database, fill, fill)
    assert len(made) == pooled.warm_target


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_refill_leaves_the_spec_to_those_who_start_cold(database: Database, pooled: SandboxSpec) -> None:
    with database.transaction() as session:
        assert make_member_in(session) is not None
        with database.transaction() as other:
            specs.lock_shared(other, pooled)
            assert make_member_in(other) is None, "another worker fills the pool"


def test_boots_at_a_time_are_limited(database: Database, pooled: SandboxSpec) -> None:
    assert len(tend(database, boots=1)) == 1
    assert tend(database, boots=1) == []
    with database.reading() as session:
        assert warm_pool.pools_to_reconcile(session) == [pooled.id]
    assert len(tend(database, boots=2)) == 1


def test_nothing_boots_where_somebody_waits_for_a_member(
    database: Database, owner: Person, add: Callable[..., str]
) -> None:
    add()
    with database.transaction() as session:
        claimed = claim(session, owner).id
    assert tend(database) == []
    make_node(database, "node-b")
    [made, _] = tend(database)
    with database.transaction() as session:
        assert session.get_one(Sandbox, made[0]).node_id == "node-b"
        session.get_one(Sandbox, claimed).created_at = after(-60)
        session.get_one(Node, "node-b").capacity = 0
        specs.change(session, SPEC_ID, {"warm_target": 3})
    assert len(tend(database)) == 1, "who waits for long does not wait for that"


def test_nothing_boots_while_a_worker_is_at_a_claim(database: Database, owner: Person, add: Callable[..., str]) -> None:
    add()
    with database.transaction() as session:
        claimed = claim(session, owner)
        claimed.due_at, claimed.lease_until = None, after(LATER)
    assert tend(database) == []


@pytest.mark.parametrize("settled", [{"ready_at": now()}, {"status": Status.ERROR}, {"due_at": None}])
def test_a_pool_is_filled_again_once_nobody_waits(
    database: Database, owner: Person, add: Callable[..., str], settled: dict[str, Any]
) -> None:
    add()
    with database.transaction() as session:
        claimed = claim(session, owner)
        for name, value in settled.items():
            setattr(claimed, name, value)
    assert len(tend(database)) == 2


def test_members_take_no_place_from_anybody(database: Database, owner: Person, add: Callable[..., str]) -> None:
    add(spec_id="another/image:1")
    with database.transaction() as session:
        session.get_one(Node, "node-a").capacity = 1
    assert tend(database) == []
    with database.transaction() as session:
        assert claim(session, owner).node_id == "node-a"


def test_a_pool_rests_after_a_failure_and_goes_on_with_the_next_success(
    database: Database, add: Callable[..., str]
) -> None:
    failed = add(status=Status.ERROR, reason=Reason.EXIT_CODE, detail="exit code 3")
    assert tend(database) == [(failed, Desired.DELETED)]
    with database.reading() as session:
        spec = specs.get_spec(session, SPEC_ID)
        assert (spec.warm_failures, spec.warm_detail) == (1, "exit_code: exit code 3")
        assert warm_pool.pools_to_reconcile(session) == []
    with database.transaction() as session:
        specs.get_spec(session, SPEC_ID).warm_failed_at = after(-3600)
    add(settled_at=now())
    assert len(tend(database)) == 1
    with database.reading() as session:
        assert specs.get_spec(session, SPEC_ID).warm_failures == 0


def test_whoever_holds_a_member_does_not_write_over_a_claim(
    database: Database, owner: Person, add: Callable[..., str]
) -> None:
    """What was seen before the claim can't be written after it: the lease keeps the claim away."""
    member = add(due_at=now())
    with database.transaction() as session:
        held = leases.claim(session, Sandbox, member, "worker", 10)
    assert held is not None
    with database.transaction() as session:
        assert claim(session, owner).id != member
    with database.transaction() as session:
        leases.release(session, Sandbox, member, held.fence)
    with database.transaction() as session:
        assert claim(session, owner).id == member
