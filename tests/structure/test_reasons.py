"""Every reason is written by the product, and a test expects it."""

import re
from collections.abc import Iterable
from pathlib import Path

from shared.states import Reason
from tests.services.directories import REPOSITORY
from tests.structure.test_structure import PARTS, files_of

STATES = REPOSITORY / "shared" / "states.py"


def unnamed_in(files: Iterable[Path], but: str = "") -> list[str]:
    text = "\n".join(path.read_text() for path in files).replace(but, "")
    return [reason.name for reason in Reason if not re.search(rf'Reason\.{reason.name}\b|"{reason.value}"', text)]


def test_every_reason_is_written() -> None:
    [members] = re.findall(r"class Reason\(StrEnum\):.*?\n\n\n", STATES.read_text(), re.DOTALL)
    assert unnamed_in((path for part in PARTS for path in files_of(part)), but=members) == []


def test_every_reason_is_expected_by_a_test() -> None:
    assert unnamed_in(path for path in files_of("tests") if path.name.startswith("test_")) == []
