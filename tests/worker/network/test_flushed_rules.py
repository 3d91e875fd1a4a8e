"""Rules that something else has removed are written again, whether or not the database and the engine respond."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from sqlalchemy.exc import OperationalError

from shared.db.database import StoreError
from shared.sandboxes import specs
from tests.factories import ApiUser
from tests.fakes.engine import IMAGE
from tests.worker.network.testbed import NetworkTestbed
from tests.worker.scenarios import running
from worker.network import isolation as module
from worker.network.isolation import NetworkIsolation
from worker.network.rules import Allowed

Outage = Callable[[NetworkTestbed, pytest.MonkeyPatch], None]


def _engine_away(testbed: NetworkTestbed, _: pytest.MonkeyPatch) -> None:
    testbed.engine.down = True


def _list_away(testbed: NetworkTestbed, _: pytest.MonkeyPatch) -> None:
    testbed.engine.fail["list_containers"] = 100


def _database_away(testbed: NetworkTestbed, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OperationalError("SELECT 1", {}, Exception("connection refused"))

    monkeypatch.setattr(testbed.bare.database, "reading", fail)


def _route_taken(_: NetworkTestbed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_conflict", lambda _: "10.0.0.0/8 by tun0")


OUTAGES = [_engine_away, _list_away, _database_away, _route_taken]


@pytest.fixture(autouse=True)
def sandbox_id(testbed: NetworkTestbed, user: ApiUser) -> str:
    """A running sandbox with firewall rules, which was admitted after the last comparison."""
    testbed.isolation.refresh()
    return running(testbed.context, user)


def refresh(testbed: NetworkTestbed) -> None:
    """One round of the periodic task, which logs the database's errors."""
    with suppress(StoreError):
        testbed.isolation.refresh()


@pytest.mark.parametrize("outage", OUTAGES)
def test_rules_are_written_back_during_an_outage(
    testbed: NetworkTestbed, monkeypatch: pytest.MonkeyPatch, outage: Outage
) -> None:
    before = testbed.rules
    outage(testbed, monkeypatch)
    for _ in range(2):  # something else removes them repeatedly
        testbed.firewall.remove()
        refresh(testbed)
        assert testbed.rules == before
    assert testbed.isolation.check() is not None, "nothing is placed on the node, and no container starts"


@pytest.mark.parametrize("outage", OUTAGES)
def test_rules_follow_the_database_after_the_outage(
    testbed: NetworkTestbed, monkeypatch: pytest.MonkeyPatch, outage: Outage
) -> None:
    with monkeypatch.context() as patch:
        outage(testbed, patch)
        testbed.firewall.remove()
        refresh(testbed)
    testbed.engine.down = False
    testbed.engine.fail.clear()
    with testbed.context.database.transaction() as session:
        specs.change(session, IMAGE, {"egress": "none"})
    refresh(testbed)
    assert testbed.rules.open == frozenset()
    testbed.isolation.check()
    refresh(testbed)
    assert testbed.isolation.check() is None


def test_rules_that_can_not_be_written_back_are_written_later(testbed: NetworkTestbed) -> None:
    before = testbed.rules
    testbed.engine.down = True
    testbed.firewall.remove()
    testbed.firewall.problem = "nft failed"
    refresh(testbed)
    assert testbed.isolation.check() == "nft failed"
    testbed.firewall.problem = None
    refresh(testbed)
    assert testbed.rules == before


def test_worker_that_has_written_no_rules_leaves_them_to_the_comparison(testbed: NetworkTestbed) -> None:
    before = testbed.rules
    restarted = NetworkIsolation(testbed.isolation._context)
    testbed.firewall.allowed = None
    testbed.engine.down = True
    restarted.refresh()
    assert testbed.firewall.allowed is None, "what sandboxes may reach is not known"
    testbed.engine.down = False
    restarted.refresh()
    assert testbed.rules == before != Allowed()
