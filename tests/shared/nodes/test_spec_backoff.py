"""The circuit breaker per node and spec: when it opens, for how long, and what closes it."""

from datetime import timedelta

import pytest
from sqlmodel import select

from shared.clock import now
from shared.db.database import Database
from shared.models import NodeSpecBackoff, Sandbox, StaleContainer
from shared.nodes import placement
from shared.nodes import registry as node_registry
from shared.nodes.placement import BackoffChange
from tests.factories import SPEC_ID, ApiUser, make_node, make_sandbox, make_spec

BAD, GOOD = "bad", "good"
OTHER_SPEC = "other:1"


@pytest.fixture(autouse=True)
def _two_nodes(database: Database) -> None:
    make_node(database, BAD, capacity=200)  # the node with more free slots
    make_node(database, GOOD)
    make_spec(database, SPEC_ID)
    make_spec(database, OTHER_SPEC, position=1)


def fail(database: Database, user: ApiUser, *, generation: int = 1, spec_id: str = SPEC_ID) -> list[BackoffChange]:
    """Record a sandbox that failed on the bad node in that generation, and is ready on the good one."""
    sandbox = make_sandbox(database, user, node_id=GOOD, spec_id=spec_id)
    with database.transaction() as session:
        stale = StaleContainer(sandbox_id=sandbox.id, node_id=BAD, refused_generation=generation, refusal="disk full")
        session.add(stale)
    return record_ready(database, sandbox)


def record_ready(database: Database, sandbox: Sandbox) -> list[BackoffChange]:
    with database.transaction() as session:
        return placement.record_result(session, sandbox)


def place(database: Database, spec_id: str = SPEC_ID) -> str | None:
    with database.transaction() as session:
        return placement.place(session, spec_id)


def stored(database: Database) -> NodeSpecBackoff | None:
    with database.reading() as session:
        return session.exec(select(NodeSpecBackoff)).one_or_none()


def end_backoff(database: Database) -> None:
    with database.transaction() as session:
        session.exec(select(NodeSpecBackoff)).one().backoff_until = now() - timedelta(seconds=1)


def backoff_of(database: Database) -> timedelta:
    found = stored(database)
    assert found
    assert found.backoff_until
    return found.backoff_until - now()


def test_breaker_opens_after_max_failures_in_a_row(database: Database, user: ApiUser) -> None:
    for count in range(1, placement.MAX_FAILURES):
        (change,) = fail(database, user)
        assert (change.node_id, change.failures, change.backoff_until) == (BAD, count, None)
        assert place(database) == BAD
    (change,) = fail(database, user)
    assert (change.node_id, change.failures) == (BAD, placement.MAX_FAILURES)
    assert place(database) == GOOD
    found = stored(database)
    assert found
    assert found.detail == "disk full"


def test_open_breaker_of_one_spec_leaves_other_specs(database: Database, user: ApiUser) -> None:
    for _ in range(placement.MAX_FAILURES):
        fail(database, user)
    assert place(database, OTHER_SPEC) == BAD


def test_success_resets_the_failures(database: Database, user: ApiUser) -> None:
    for _ in range(2):
        for _ in range(placement.MAX_FAILURES - 1):
            fail(database, user)
        assert record_ready(database, make_sandbox(database, user, node_id=BAD)) == [BackoffChange(BAD, failures=0)]
    assert place(database) == BAD


def test_success_with_another_spec_changes_no_breaker(database: Database, user: ApiUser) -> None:
    for _ in range(placement.MAX_FAILURES):
        fail(database, user)
        assert record_ready(database, make_sandbox(database, user, node_id=BAD, spec_id=OTHER_SPEC)) == []
    assert place(database) == GOOD


def test_failure_counts_once_for_its_own_generation(database: Database, user: ApiUser) -> None:
    assert fail(database, user, generation=0) == []
    sandbox = make_sandbox(database, user, node_id=GOOD)
    with database.transaction() as session:
        session.add(StaleContainer(sandbox_id=sandbox.id, node_id=BAD, refused_generation=1))
    assert [change.failures for change in record_ready(database, sandbox)] == [1]
    assert record_ready(database, sandbox) == []


def test_failure_of_an_earlier_placement_does_not_extend_the_backoff(database: Database, user: ApiUser) -> None:
    for _ in range(placement.MAX_FAILURES + 20):
        fail(database, user)
    assert backoff_of(database) <= placement.FIRST_BACKOFF


def test_half_open_breaker_lets_one_sandbox_through(database: Database, user: ApiUser) -> None:
    for _ in range(placement.MAX_FAILURES):
        fail(database, user)
    end_backoff(database)
    assert [place(database) for _ in range(3)] == [BAD, GOOD, GOOD]
    end_backoff(database)  # although the sandbox that was let through has no result
    assert [place(database) for _ in range(2)] == [BAD, GOOD]


def test_failure_of_a_half_open_breaker_doubles_the_backoff(database: Database, user: ApiUser) -> None:
    for _ in range(placement.MAX_FAILURES):
        fail(database, user)
    for doublings in range(1, 8):
        end_backoff(database)
        assert place(database) == BAD
        backoff, before = min(placement.FIRST_BACKOFF * 2**doublings, placement.MAX_BACKOFF), now()
        (change,) = fail(database, user)
        assert change.backoff_until
        assert before + backoff <= change.backoff_until <= now() + backoff
        assert place(database) == GOOD


def test_success_of_a_half_open_breaker_closes_it(database: Database, user: ApiUser) -> None:
    for _ in range(placement.MAX_FAILURES):
        fail(database, user)
    end_backoff(database)
    assert place(database) == BAD
    assert record_ready(database, make_sandbox(database, user, node_id=BAD)) == [BackoffChange(BAD, failures=0)]
    assert stored(database) is None
    assert [place(database) for _ in range(2)] == [BAD, BAD]


def test_uncordon_closes_the_breaker_immediately(database: Database, user: ApiUser) -> None:
    for _ in range(placement.MAX_FAILURES):
        fail(database, user)
    with database.transaction() as session:
        node_registry.uncordon(session, BAD)
    assert place(database) == BAD


def test_clock_set_back_does_not_prolong_an_open_breaker(database: Database, user: ApiUser) -> None:
    for _ in range(placement.MAX_FAILURES):
        fail(database, user)
    assert place(database) == GOOD
    with database.transaction() as session:
        session.exec(select(NodeSpecBackoff)).one().backoff_until = now() + timedelta(hours=1)
    assert place(database) == BAD
    assert fail(database, user)[0].failures == placement.MAX_FAILURES + 1
