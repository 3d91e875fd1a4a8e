"""The documents as documents: links, files, lengths, pictures, and the README's size and tree."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.documents import DOCS, DOCUMENTS, PAGES, PICTURES, README, anchors_of
from tests.services.directories import REPOSITORY

README_LINES = 200
PICTURE_BYTES = 200_000

LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED_PATH = re.compile(r"`((?:api|deploy|docs|shared|tests|worker|\.ci)/[\w./-]*)`")
TREE_ROW = re.compile(r"^([\w./]+) {2,}\S", re.MULTILINE)
PICTURE = re.compile(r"!\[[^\]]+\]\((?!\w+:)([^)]+)\)")


def test_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= README_LINES


def test_readme_shows_no_pictures_of_other_hosts() -> None:
    text = README.read_text()
    assert PICTURE.findall(text)
    assert re.findall(r"!\[[^\]]*\]\(\w+:", text) == []


def test_pictures_are_shown_and_small() -> None:
    shown = {(page.parent / path).resolve() for page in PAGES for path in PICTURE.findall(page.read_text())}
    assert set(PICTURES.iterdir()) - shown == set()
    assert [path.name for path in PICTURES.iterdir() if path.stat().st_size > PICTURE_BYTES] == []


def test_index_leads_to_every_page() -> None:
    index = DOCS / "README.md"
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in LINK.findall(index.read_text())}
    assert [page for page in PAGES if page not in (README, index) and page not in linked] == []


def test_relative_links_of_documents_lead_somewhere() -> None:
    assert offending(dead_links) == {}


def test_files_that_documents_name_exist() -> None:
    assert offending(missing_files) == {}


def test_lines_of_documents_are_short() -> None:
    assert offending(long_lines) == {}


@pytest.mark.parametrize(
    ("text", "find"),
    [
        ("[there](nowhere.md)", "dead_links"),
        ("[there](#nowhere)", "dead_links"),
        ("`shared/nothing.py`", "missing_files"),
        ("`nowhere/nothing.py`", "missing_files"),
        ("x" * 121, "long_lines"),
    ],
)
def test_errors_in_a_document_are_found(text: str, find: str, tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    document.write_text(f"# A document\n\n[here](document.md#a-document) and `shared/states.py`\n{text}\n")
    found = {check.__name__: check(document) for check in (dead_links, missing_files, long_lines)}
    assert {name for name, wrong in found.items() if wrong} == {find}


def offending(find: Callable[[Path], list[str]]) -> dict[str, list[str]]:
    """Return what is found wrong, by the document's name."""
    found = {str(document.relative_to(REPOSITORY)): find(document) for document in DOCUMENTS}
    return {name: wrong for name, wrong in found.items() if wrong}


def dead_links(document: Path) -> list[str]:
    links = [link for link in LINK.findall(document.read_text()) if "://" not in link]
    return [link for link in links if not leads_somewhere(document, link)]


def missing_files(document: Path) -> list[str]:
    named = [*NAMED_PATH.findall(document.read_text()), *re.findall(r"`(\w+/\w+\.py)`", document.read_text())]
    return [name for name in named if not (REPOSITORY / name).exists()]


def long_lines(document: Path) -> list[str]:
    prose = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [line for line in prose.splitlines() if len(line) > 120 and not line.startswith(("|", "!["))]


def leads_somewhere(document: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (document.parent / path).resolve() if path else document
    return target.exists() and (not anchor or anchor in anchors_of(target))


def test_documented_tree_matches_the_repository() -> None:
    tree = README.read_text().split("## Contributing", 1)[1].split("```")[1]
    named = {name.rstrip("/") for name in TREE_ROW.findall(tree)} - {"var"}  # made at the first run
    assert [name for name in named if not (REPOSITORY / name).exists()] == []
    parts = {path.parent.name for path in REPOSITORY.glob("*/__init__.py")}
    assert parts <= named


def test_every_decision_is_listed_by_number_and_by_area() -> None:
    index = (DOCS / "decisions" / "README.md").read_text()
    files = {int(path.name[:4]): path.name for path in (DOCS / "decisions").glob("[0-9]*.md")}
    listed = re.findall(r"^(\d+)\. \[[^\]]+\]\(([^)]+)\)", index, re.MULTILINE)
    assert {int(number): name for number, name in listed} == files
    areas = re.findall(r"^\| [A-Z][^|]+ \| ([\d, ]+) \|$", index, re.MULTILINE)
    assert {int(number) for area in areas for number in area.split(",")} == set(files)
