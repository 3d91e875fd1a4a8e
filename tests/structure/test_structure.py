"""The structure that docs/develop/architecture.md promises: small files, rooms of few files, a short README."""

from collections import Counter
from pathlib import Path

import pytest

from tests.services.directories import REPOSITORY

PARTS = ("api", "worker", "shared")
CODE = (*PARTS, "deploy", "tests")
MAX_LINES, MAX_README_LINES, MAX_FILES = 300, 200, 15
# One file per resource: their number is that of the interface.
ROOMS_BY_RESOURCE = {"api/routes/v1", "api/schemas/v1"}


@pytest.mark.parametrize("part", CODE)
def test_no_file_is_too_long(part: str) -> None:
    assert {name(path): lines for path in files_of(part) if (lines := count_lines(path)) > MAX_LINES} == {}


@pytest.mark.parametrize("part", PARTS)
def test_no_room_has_too_many_files(part: str) -> None:
    rooms = Counter(name(path.parent) for path in files_of(part) if path.name != "__init__.py")
    assert rooms.total() > 40, "this counts them all"
    assert {room: files for room, files in rooms.items() if files > MAX_FILES}.keys() <= ROOMS_BY_RESOURCE


def test_readme_is_short() -> None:
    assert count_lines(REPOSITORY / "README.md") <= MAX_README_LINES


def files_of(part: str) -> list[Path]:
    return sorted((REPOSITORY / part).rglob("*.py"))


def name(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def count_lines(path: Path) -> int:
    return len(path.read_text().splitlines())
