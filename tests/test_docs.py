"""The references for developers, checked against the citations in code and tests."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.directories import REPOSITORY

DEVELOP = REPOSITORY / "docs" / "develop"
CITING = ("api", "deploy", "docs/decisions", "shared", "tests", "worker")
SUFFIXES = (".md", ".py", ".toml")

DEFECT_HEADING = re.compile(r"^## (\d+)\. ", re.MULTILINE)
DEFECT_TEST = re.compile(r"\bdef test_(?:\w+_)?defect_(\d+)_")
DEFECT_CITED = re.compile(r"\bdefect (\d+)")

SECTION = r"(?:\d+(?:\.\d+)?|[A-Z]\b)"
SECTION_HEADING = re.compile(rf"^##+ (?:Appendix )?({SECTION})\.? ", re.MULTILINE)
SECTIONS_CITED = re.compile(rf"(?i:wire contract)((?:,? (?:section |appendix )?{SECTION})*)")
# The text between two words of a comment that continues in the next line.
MARGIN = re.compile(r"\s*\n[\s#]*")


def test_defects_named_by_tests_match_the_list() -> None:
    listed = listed_defects()
    assert listed == list(range(1, 53))
    named = [(path, int(number)) for path, text in citing_files() for number in DEFECT_TEST.findall(text)]
    assert [(path, number) for path, number in named if number not in listed] == []
    assert set(listed) - {number for _, number in named} == set()


def test_defects_that_are_cited_are_in_the_list() -> None:
    cited = [(path, int(number)) for path, text in citing_files() for number in DEFECT_CITED.findall(text)]
    assert cited
    assert [(path, number) for path, number in cited if number not in listed_defects()] == []


def test_sections_of_the_wire_contract_that_are_cited_exist() -> None:
    known = SECTION_HEADING.findall((DEVELOP / "wire-contract.md").read_text())
    assert len(known) == len(set(known))
    cited = [(path, section) for path, text in citing_files() for section in cited_sections(text)]
    assert cited
    assert [(path, section) for path, section in cited if section not in known] == []


@pytest.mark.parametrize(
    ("text", "sections"),
    [
        ("as V1 has it (wire contract 1.5).", ["1.5"]),
        ("(wire contract, section 0)", ["0"]),
        ("The wire's shapes (wire contract, appendix B); extensions", ["B"]),
        ("(wire contract 3.1, 3.3)", ["3.1", "3.3"]),
        ("(wire contract 3.2, step 12)", ["3.2"]),
        ("# one (wire\n    # contract 1.7)", ["1.7"]),
        ("as the wire contract says", ["no section"]),
    ],
)
def test_citation_is_read_in_each_of_its_forms(text: str, sections: list[str]) -> None:
    assert cited_sections(text) == sections


def listed_defects() -> list[int]:
    return [int(number) for number in DEFECT_HEADING.findall((DEVELOP / "v1-defects.md").read_text())]


def cited_sections(text: str) -> list[str]:
    """The sections of the wire contract that a text cites; `no section` for a mention without one."""
    cited = SECTIONS_CITED.findall(MARGIN.sub(" ", text))
    return [section for sections in cited for section in re.findall(SECTION, sections) or ["no section"]]


def citing_files() -> Iterator[tuple[str, str]]:
    """Each file that may cite and its text. This one may not: its examples are no citations."""
    for folder in CITING:
        for path in (REPOSITORY / folder).rglob("*"):
            if path.suffix in SUFFIXES and path != Path(__file__):
                yield str(path.relative_to(REPOSITORY)), path.read_text()
