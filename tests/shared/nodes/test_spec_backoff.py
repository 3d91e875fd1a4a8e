"""Nodes whose engines refuse a spec that others run: when they rest, for how long, and who brings them back."""

from datetime import timedelta

import pytest
from sqlmodel import select

from shared.clock import now
from shared.db.database import Database
from shared.models import NodeSpecBackoff, Sandbox, StaleContainer
from shared.nodes import placement, spec_backoff
from shared.nodes import registry as node_registry
from shared.nodes.spec_backoff import BackoffChange
from tests.factories import SPEC_ID, Person, make_node, make_sandbox, make_spec

BAD, GOOD = "bad", "good"
OTHER_SPEC = "other:1"


@pytest.fixture(autouse=True)
def _two_nodes(database: Database) -> None:
    make_node(database, BAD, capacity=200)  # the emptier one
    make_node(database, GOOD)
    make_spec(database, SPEC_ID)
    make_spec(database, OTHER_SPEC, position=1)


def refuse(database: Database, user: Person, *, generation: int = 1, spec_id: str = SPEC_ID) -> list[BackoffChange]:
    """A sandbox that the bad node has refused for that wish is ready on the good one."""
    sandbox = make_sandbox(database, user, node_id=GOOD, spec_id=spec_id)
    with database.transaction() as session:
        left = StaleContainer(sandbox_id=sandbox.id, node_id=BAD, refused_generation=generation, refusal="disk full")
        session.add(left)
    return judge(database, sandbox)


def judge(database: Database, sandbox: Sandbox) -> list[BackoffChange]:
    with database.transaction() as session:
        return spec_backoff.record_result(session, sandbox)


def place(database: Database, spec_id: str = SPEC_ID) -> str | None:
    with database.transaction() as session:
        return placement.place(session, spec_id)


def known(database: Database) -> NodeSpecBackoff | None:
    with database.reading() as session:
        return session.exec(select(NodeSpecBackoff)).one_or_none()


def end_rest(database: Database) -> None:
    with database.transaction() as session:
        session.exec(select(NodeSpecBackoff)).one().rests_until = now() - timedelta(seconds=1)


def rest_of(database: Database) -> timedelta:
    found = known(database)
    assert found
    assert found.rests_until
    return found.rests_until - now()


def test_node_rests_after_so_many_refusals_in_a_row(database: Database, user: Person) -> None:
    for count in range(1, spec_backoff.MAX_FAILURES):
        (judged,) = refuse(database, user)
        assert (judged.node_id, judged.failures, judged.rests_until) == (BAD, count, None)
        assert place(database) == BAD
    (judged,) = refuse(database, user)
    assert (judged.node_id, judged.failures) == (BAD, spec_backoff.MAX_FAILURES)
    assert place(database) == GOOD
    found = known(database)
    assert found
    assert found.detail == "disk full"


def test_node_that_refuses_one_spec_still_gets_others(database: Database, user: Person) -> None:
    for _ in range(spec_backoff.MAX_FAILURES):
        refuse(database, user)
    assert place(database, OTHER_SPEC) == BAD


def test_success_in_between_begins_anew(database: Database, user: Person) -> None:
    for _ in range(2):
        for _ in range(spec_backoff.MAX_FAILURES - 1):
            refuse(database, user)
        assert judge(database, make_sandbox(database, user, node_id=BAD)) == [BackoffChange(BAD, failures=0)]
    assert place(database) == BAD


def test_success_with_another_spec_says_nothing(database: Database, user: Person) -> None:
    for _ in range(spec_backoff.MAX_FAILURES):
        refuse(database, user)
        assert judge(database, make_sandbox(database, user, node_id=BAD, spec_id=OTHER_SPEC)) == []
    assert place(database) == GOOD


def test_a_refusal_counts_once_and_for_its_own_wish_only(database: Database, user: Person) -> None:
    assert refuse(database, user, generation=0) == []
    sandbox = make_sandbox(database, user, node_id=GOOD)
    with database.transaction() as session:
        session.add(StaleContainer(sandbox_id=sandbox.id, node_id=BAD, refused_generation=1))
    assert [judged.failures for judged in judge(database, sandbox)] == [1]
    assert judge(database, sandbox) == []


def test_refusal_under_way_when_the_pause_began_does_not_lengthen_it(database: Database, user: Person) -> None:
    for _ in range(spec_backoff.MAX_FAILURES + 20):
        refuse(database, user)
    assert rest_of(database) <= spec_backoff.FIRST_REST


def test_pause_is_followed_by_one_trial(database: Database, user: Person) -> None:
    for _ in range(spec_backoff.MAX_FAILURES):
        refuse(database, user)
    end_rest(database)
    assert [place(database) for _ in range(3)] == [BAD, GOOD, GOOD]
    end_rest(database)  # nothing was heard of the trial
    assert [place(database) for _ in range(2)] == [BAD, GOOD]


def test_trial_that_fails_makes_the_next_rest_longer(database: Database, user: Person) -> None:
    for _ in range(spec_backoff.MAX_FAILURES):
        refuse(database, user)
    for doublings in range(1, 8):
        end_rest(database)
        assert place(database) == BAD
        rest, before = min(spec_backoff.FIRST_REST * 2**doublings, spec_backoff.MAX_REST), now()
        (judged,) = refuse(database, user)
        assert judged.rests_until
        assert before + rest <= judged.rests_until <= now() + rest
        assert place(database) == GOOD


def test_trial_that_succeeds_brings_the_node_back(database: Database, user: Person) -> None:
    for _ in range(spec_backoff.MAX_FAILURES):
        refuse(database, user)
    end_rest(database)
    assert place(database) == BAD
    assert judge(database, make_sandbox(database, user, node_id=BAD)) == [BackoffChange(BAD, failures=0)]
    assert known(database) is None
    assert [place(database) for _ in range(2)] == [BAD, BAD]


def test_operator_brings_it_back_at_once(database: Database, user: Person) -> None:
    for _ in range(spec_backoff.MAX_FAILURES):
        refuse(database, user)
    with database.transaction() as session:
        node_registry.uncordon(session, BAD)
    assert place(database) == BAD
