"""The nemesis counts only the faults that it could inject, not all that it tried, and injects every kind."""

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from tests.drills.chaos.faults import CONTAINERS, PARTS, Fault, Missed, stores
from tests.drills.chaos.faults.responses import ReadsFail
from tests.drills.chaos.nemesis import Nemesis
from tests.drills.chaos.site import NODES
from tests.services.valkey import Valkey

SITE: Any = SimpleNamespace(postgres="a server")
WITHOUT_POSTGRES: Any = SimpleNamespace(postgres=None)


class Struck(Fault):
    seconds = (0.0, 0.0)

    def inject(self) -> None:
        pass


class Failed(Fault):
    seconds = (0.0, 0.0)
    healed: ClassVar[list[str]] = []

    def inject(self) -> None:
        raise Missed("there is no target")

    def heal(self) -> None:
        self.healed.append(self.kind())


def test_failed_fault_is_not_counted_and_is_healed() -> None:
    healed = len(Failed.healed)
    nemesis, rng = Nemesis(SITE, 1, stretch=1.0), random.Random(1)
    nemesis._inject(Struck(SITE, rng), rng)
    nemesis._inject(Failed(SITE, rng), rng)
    assert dict(nemesis.effective) == {"struck": 1}
    assert [(fault.kind, fault.effective) for fault in nemesis.log] == [("struck", True), ("failed", False)]
    assert Failed.healed[healed:] == ["failed"]


def test_response_fault_that_no_request_meets_is_not_counted() -> None:
    engine = SimpleNamespace(injected=Counter[str](), failure=None)
    site: Any = SimpleNamespace(postgres=None, faulty=dict.fromkeys(NODES, engine))
    nemesis, rng = Nemesis(site, 1, stretch=0.0), random.Random(1)
    nemesis._inject(ReadsFail(site, rng), rng)
    assert (nemesis.effective, nemesis.missed) == ({}, {"reads fail": 1})
    assert engine.failure is None

    hit = ReadsFail(site, rng)
    hit.inject()
    engine.injected["500"] += 1
    hit.confirm()


def test_flush_of_an_empty_broker_is_not_counted(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "QUEUED_SECONDS", 0.0)
    site: Any = SimpleNamespace(postgres=None, valkey=valkey)
    nemesis, rng = Nemesis(site, 1, stretch=1.0), random.Random(1)
    with valkey.client() as broker:
        broker.set("aw:another", "kept")
        nemesis._inject(stores.BrokerFlushed(site, rng), rng)
        assert (nemesis.effective, nemesis.missed) == ({}, {"broker flushed": 1})
        broker.lpush(stores.QUEUES[-1], "a job")
        nemesis._inject(stores.BrokerFlushed(site, rng), rng)
        assert nemesis.effective == {"broker flushed": 1}
        assert broker.dbsize() == 0


def test_no_kind_repeats_before_all_others_were_injected() -> None:
    nemesis = Nemesis(SITE, 1, stretch=1.0)
    [(rng, _, _), _] = nemesis._schedules
    kinds = [Struck, Failed, Failed]
    for _ in range(3):
        drawn = [type(nemesis._next_fault(rng, kinds)) for _ in kinds]
        assert sorted(kind.__name__ for kind in drawn) == ["Failed", "Failed", "Struck"]


def test_kind_without_a_fault_is_missing() -> None:
    nemesis, rng = Nemesis(SITE, 1, stretch=1.0), random.Random(1)
    every = {kind.kind() for kind in (*PARTS, *CONTAINERS)}
    nemesis._schedules[0] = (rng, (*PARTS, Struck, Failed), 0.0)
    for kind in (Struck, Failed):
        nemesis._inject(kind(SITE, rng), rng)
    assert nemesis.missing == sorted(every | {"failed"})


def test_faults_of_postgresql_are_not_required_without_it() -> None:
    assert "database partitioned" in Nemesis(SITE, 1, stretch=1.0).missing
    assert "database partitioned" not in Nemesis(WITHOUT_POSTGRES, 1, stretch=1.0).missing


def test_clock_that_sqlite_shares_is_stepped_only_with_sqlite() -> None:
    stepped = {"machine clock stepped", "service clocks stepped"}
    assert stepped & set(Nemesis(SITE, 1, stretch=1.0).missing) == {"service clocks stepped"}
    assert stepped & set(Nemesis(WITHOUT_POSTGRES, 1, stretch=1.0).missing) == {"machine clock stepped"}
