"""The report of attacks is up to date."""

from tests.isolation.attacks import ATTACKS
from tests.isolation.report import PATH, make_report
from tests.isolation.verdicts import OPEN, UNDECIDABLE


def test_report_is_current() -> None:
    assert PATH.read_text() == make_report(), "python -m tests.isolation writes it"


def test_lists_name_attacks_that_exist() -> None:
    names = [one.id for one in ATTACKS]
    assert len(names) == len(set(names)) > 150
    assert (OPEN.keys() | UNDECIDABLE.keys()) - set(names) == set()
    assert OPEN.keys() & UNDECIDABLE.keys() == set()
