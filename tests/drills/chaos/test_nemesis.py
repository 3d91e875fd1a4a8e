"""The nemesis counts what it has done, not what it has tried, and leaves no kind out."""

import random
from types import SimpleNamespace
from typing import Any, ClassVar

from tests.drills.chaos.faults import CONTAINERS, PARTS, Fault, Missed
from tests.drills.chaos.nemesis import Nemesis

SITE: Any = SimpleNamespace(postgres="a server")
WITHOUT_POSTGRES: Any = SimpleNamespace(postgres=None)


class Struck(Fault):
    seconds = (0.0, 0.0)

    def inflict(self) -> None:
        pass


class Failed(Fault):
    seconds = (0.0, 0.0)
    healed: ClassVar[list[str]] = []

    def inflict(self) -> None:
        raise Missed("nothing is there")

    def heal(self) -> None:
        self.healed.append(self.kind())


def test_fault_that_failed_is_no_fault_and_is_healed() -> None:
    healed = len(Failed.healed)
    nemesis, rng = Nemesis(SITE, 1, stretch=1.0), random.Random(1)
    nemesis._afflict(Struck(SITE, rng), rng)
    nemesis._afflict(Failed(SITE, rng), rng)
    assert dict(nemesis.landed) == {"struck": 1}
    assert [(fault.kind, fault.landed) for fault in nemesis.log] == [("struck", True), ("failed", False)]
    assert Failed.healed[healed:] == ["failed"]


def test_each_kind_comes_before_one_comes_again() -> None:
    nemesis = Nemesis(SITE, 1, stretch=1.0)
    [(rng, _, _), _] = nemesis._hands
    kinds = [Struck, Failed, Failed]
    for _ in range(3):
        deck = [type(nemesis._draw(rng, kinds)) for _ in kinds]
        assert sorted(kind.__name__ for kind in deck) == ["Failed", "Failed", "Struck"]


def test_kind_without_a_fault_is_missing() -> None:
    nemesis, rng = Nemesis(SITE, 1, stretch=1.0), random.Random(1)
    every = {kind.kind() for kind in (*PARTS, *CONTAINERS)}
    nemesis._hands[0] = (rng, (*PARTS, Struck, Failed), 0.0)
    for kind in (Struck, Failed):
        nemesis._afflict(kind(SITE, rng), rng)
    assert nemesis.missing == sorted(every | {"failed"})


def test_site_without_postgresql_misses_no_fault_of_it() -> None:
    assert "database partitioned" in Nemesis(SITE, 1, stretch=1.0).missing
    assert "database partitioned" not in Nemesis(WITHOUT_POSTGRES, 1, stretch=1.0).missing
