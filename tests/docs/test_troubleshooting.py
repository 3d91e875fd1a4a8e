"""Every reason has an entry in the troubleshooting page, with each of its parts."""

import re
from pathlib import Path

import pytest

from shared.errors import NotFound
from shared.reasons import PAGE as FILE
from shared.reasons import Explanation, explain, explanations
from shared.states import Reason
from tests.docs.documents import anchors_of, read_page, read_section
from tests.services.directories import REPOSITORY

PAGE = read_page("operate/troubleshooting.md")
PARTS = ("meaning", "cause", "check", "fix", "data")
SECTIONS = ("Reasons of sandboxes", "Reasons of warm sandboxes", "Reasons of start tasks", "Reasons of conversations")
# The entries that errors name: in scripts the second argument of `die`, or a constant; in Python the argument of `more`
# or the second one of `ServiceError`, or a constant.
NAMED = re.compile(
    r"""\bdie "[^"]*" ([a-z]\S+)|^readonly (?:ENTRY|FAILED|OLD_PYTHON)=(\S+)"""
    r"""|\bmore\(["']([^"'{]+)["']|\bServiceError\([^()]*, "([a-z-]+)"|^ENTRY = "(.+)"$""",
    re.MULTILINE,
)
# Reasons that are not those of a sandbox or a start task.
OF_CONVERSATIONS = ("model_silent", "conversation_lost", "events_refused")


@pytest.mark.parametrize("section", [*SECTIONS, "Start-up errors", "Other symptoms"])
def test_every_entry_has_all_its_parts(section: str) -> None:
    entries = entries_of(section)
    assert entries
    # A symptom's title is its meaning.
    parts = PARTS[1:] if section == "Other symptoms" else PARTS
    assert [entry.name for entry in entries if not all(getattr(entry, part) for part in parts)] == []


def test_entries_match_the_reasons() -> None:
    entries = [entry.name for section in SECTIONS for entry in entries_of(section)]
    assert sorted(entries) == sorted([*(reason.value for reason in Reason), *OF_CONVERSATIONS])


def test_every_entry_is_explained_with_its_whole_text() -> None:
    assert [entry.title for entry in explanations().values()] == re.findall(r"^### (.+)$", PAGE, re.MULTILINE)
    assert set(explanations()) <= set(anchors_of(FILE))
    parts = [getattr(entry, part) for entry in explanations().values() for part in PARTS]
    assert len([part for part in parts if part]) == PAGE.count("\n- **")
    assert [part for part in parts if "](" in part or "**" in part] == []


def test_explanation_leads_to_its_place_in_the_page() -> None:
    entry = explain("OOM_killed ")
    assert entry.document == "docs/operate/troubleshooting.md#oom_killed"
    assert entry.fix.startswith("Resume the sandbox.")
    with pytest.raises(NotFound):
        explain("no_such_reason")


def test_every_start_up_error_leads_to_its_entry() -> None:
    code = "\n".join(path.read_text() for path in sources())
    assert [entry.name for entry in entries_of("Start-up errors") if entry.name not in code] == []


def test_every_entry_that_an_error_names_exists() -> None:
    """A script prints the entry's place in the page, and the program a command that prints the entry."""
    code = "\n".join(path.read_text() for path in sources())
    named = {name for groups in NAMED.findall(code) for name in groups if name}
    assert len(named) > 15
    assert named - set(explanations()) == set()


def test_every_reason_is_in_the_reference() -> None:
    listed = read_section(read_page("reference/errors.md"), "Reasons")
    assert [reason.value for reason in Reason if f"troubleshooting.md#{reason.value})" not in listed] == []


def sources() -> list[Path]:
    scripts = ("setup", "engine", "install-packages", "canvas", "image/build")
    python = (path for part in ("deploy", "shared", "worker") for path in (REPOSITORY / part).rglob("*.py"))
    return [*python, *(REPOSITORY / "deploy" / script for script in scripts)]


def entries_of(section: str) -> list[Explanation]:
    return [explain(entry) for entry in anchors_in(section)]


def anchors_in(section: str) -> list[str]:
    titles = re.findall(r"^### (.+)$", read_section(PAGE, section), re.MULTILINE)
    return [entry.name for entry in explanations().values() if entry.title in titles]
