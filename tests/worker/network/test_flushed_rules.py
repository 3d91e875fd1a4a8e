"""Rules that something else has removed are written again, whether or not the database and the engine respond."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from sqlalchemy.exc import OperationalError

from shared.db.database import StoreError
from shared.sandboxes import specs
from tests.factories import ApiUser
from tests.fakes.engine import IMAGE
from tests.worker.network.scene import Scene
from tests.worker.scenarios import running
from worker.network import isolation as module
from worker.network.isolation import NetworkIsolation
from worker.network.rules import Allowed

Outage = Callable[[Scene, pytest.MonkeyPatch], None]


def _engine_away(scene: Scene, _: pytest.MonkeyPatch) -> None:
    scene.engine.down = True


def _list_away(scene: Scene, _: pytest.MonkeyPatch) -> None:
    scene.engine.fail["list_containers"] = 100


def _database_away(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OperationalError("SELECT 1", {}, Exception("connection refused"))

    monkeypatch.setattr(scene.bare.database, "reading", fail)


def _route_taken(_: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_conflict", lambda _: "10.0.0.0/8 by tun0")


OUTAGES = [_engine_away, _list_away, _database_away, _route_taken]


@pytest.fixture(autouse=True)
def sandbox_id(scene: Scene, user: ApiUser) -> str:
    """A running sandbox with firewall rules, which was admitted after the last comparison."""
    scene.isolation.refresh()
    return running(scene.context, user)


def refresh(scene: Scene) -> None:
    """One round of the periodic task, which logs the database's errors."""
    with suppress(StoreError):
        scene.isolation.refresh()


@pytest.mark.parametrize("outage", OUTAGES)
def test_rules_are_written_back_during_an_outage(scene: Scene, monkeypatch: pytest.MonkeyPatch, outage: Outage) -> None:
    before = scene.rules
    outage(scene, monkeypatch)
    for _ in range(2):  # something else removes them repeatedly
        scene.firewall.remove()
        refresh(scene)
        assert scene.rules == before
    assert scene.isolation.check() is not None, "nothing is placed on the node, and no container starts"


@pytest.mark.parametrize("outage", OUTAGES)
def test_rules_follow_the_database_after_the_outage(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, outage: Outage
) -> None:
    with monkeypatch.context() as patch:
        outage(scene, patch)
        scene.firewall.remove()
        refresh(scene)
    scene.engine.down = False
    scene.engine.fail.clear()
    with scene.context.database.transaction() as session:
        specs.change(session, IMAGE, {"egress": "none"})
    refresh(scene)
    assert scene.rules.open == frozenset()
    scene.isolation.check()
    refresh(scene)
    assert scene.isolation.check() is None


def test_rules_that_can_not_be_written_back_are_written_later(scene: Scene) -> None:
    before = scene.rules
    scene.engine.down = True
    scene.firewall.remove()
    scene.firewall.problem = "nft failed"
    refresh(scene)
    assert scene.isolation.check() == "nft failed"
    scene.firewall.problem = None
    refresh(scene)
    assert scene.rules == before


def test_worker_that_has_written_no_rules_leaves_them_to_the_comparison(scene: Scene) -> None:
    before = scene.rules
    restarted = NetworkIsolation(scene.isolation._context)
    scene.firewall.allowed = None
    scene.engine.down = True
    restarted.refresh()
    assert scene.firewall.allowed is None, "what sandboxes may reach is not known"
    scene.engine.down = False
    restarted.refresh()
    assert scene.rules == before != Allowed()
