"""Each attack from inside the real sandbox image, as the agent's user, with its control."""

import pytest

from tests.isolation.attack import Attack
from tests.isolation.attacks import ATTACKS
from tests.isolation.testbed import AttackTestbed
from tests.isolation.verdicts import OPEN, UNDECIDABLE

DECIDED = [one for one in ATTACKS if one.id not in UNDECIDABLE]


@pytest.mark.parametrize("attack", DECIDED, ids=lambda attack: attack.id)
def test_attack_has_the_expected_outcome(testbed: AttackTestbed, attack: Attack) -> None:
    probe, control = testbed.outcomes(attack)
    assert control.reached, f"the control failed: {attack.control}: {control.evidence}"
    assert probe.reached == (attack.id in OPEN), f"{attack.probe}: {probe.evidence}"


def test_undecidable_attack_never_succeeds(testbed: AttackTestbed) -> None:
    """Its control may succeed on a machine that can decide it."""
    undecidable = [one for one in ATTACKS if one.id in UNDECIDABLE]
    assert len(undecidable) == len(UNDECIDABLE)
    assert {one.id for one in undecidable if testbed.outcomes(one)[0].reached} == set()
