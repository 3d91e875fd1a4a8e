"""The structure that docs/develop/architecture.md promises: small files, rooms of few files, a short README."""

import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.services.directories import REPOSITORY

PARTS = ("api", "worker", "shared")
CODE = (*PARTS, "deploy", "tests")
MAX_LINES, MAX_README_LINES, MAX_FILES = 300, 200, 15
# One file per resource: the interface determines their number.
ROOMS_BY_RESOURCE = {"api/routes/v1", "api/schemas/v1"}
PUBLIC_CLASS = re.compile(r"class ([A-Z]\w*)")


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


def test_public_class_has_a_name_of_its_own() -> None:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in (path for part in (*PARTS, "deploy") for path in files_of(part)):
        for line in path.read_text().splitlines():
            if match := PUBLIC_CLASS.match(line):
                found[match[1]].append(name(path))
    assert len(found) > 500, "this finds them all"
    assert {each: paths for each, paths in found.items() if len(paths) > 1} == {}


def files_of(part: str) -> list[Path]:
    return sorted((REPOSITORY / part).rglob("*.py"))


def name(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def count_lines(path: Path) -> int:
    return len(path.read_text().splitlines())
