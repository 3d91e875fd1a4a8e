"""Every reason has an entry in the troubleshooting page, with each of its parts."""

import re

import pytest

from shared.states import Reason
from tests.docs.documents import read_page, read_section

PAGE = read_page("operate/troubleshooting.md")
PARTS = ("Meaning", "Cause", "Check", "Fix", "Data")
SECTIONS = ("Reasons of sandboxes", "Reasons of warm sandboxes", "Reasons of start tasks", "Reasons of conversations")
# Reasons that are not those of a sandbox or a start task.
OF_CONVERSATIONS = ("model_silent", "events_refused")


@pytest.mark.parametrize("reason", [*(reason.value for reason in Reason), *OF_CONVERSATIONS])
def test_every_reason_has_an_entry_with_all_its_parts(reason: str) -> None:
    entry = read_section(PAGE, reason)
    assert re.findall(r"^- \*\*(\w+)\.\*\* \S", entry, re.MULTILINE) == list(PARTS)


def test_entries_are_those_of_the_reasons() -> None:
    text = "\n".join(read_section(PAGE, section) for section in SECTIONS)
    entries = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert sorted(entries) == sorted([*(reason.value for reason in Reason), *OF_CONVERSATIONS])


def test_every_reason_is_in_the_reference() -> None:
    listed = read_section(read_page("reference/errors.md"), "Reasons")
    assert [reason.value for reason in Reason if f"troubleshooting.md#{reason.value})" not in listed] == []


@pytest.mark.parametrize("section", ["Start-up errors", "Other symptoms"])
def test_every_other_entry_says_how_to_fix_it(section: str) -> None:
    entries = re.split(r"^### ", read_section(PAGE, section), flags=re.MULTILINE)[1:]
    assert entries
    assert [entry.partition("\n")[0] for entry in entries if "\n- **Fix.** " not in entry] == []
