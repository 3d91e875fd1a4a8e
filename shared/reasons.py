"""Explanations of reasons and start-up errors, read from the troubleshooting page.

`shared/troubleshooting.md` is a link to `docs/operate/troubleshooting.md`; a wheel contains the page itself.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from shared.errors import NotFound

PAGE = Path(__file__).with_name("troubleshooting.md")
DOCUMENT = "docs/operate/troubleshooting.md"

_ENTRY = re.compile(r"^### (.+)\n((?:(?!#).*\n)*)", re.MULTILINE)
_PART = re.compile(r"^- \*\*(\w+)\.\*\* ((?:.+\n)(?:  .+\n)*)", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")


@dataclass(frozen=True)
class Explanation:
    """One entry of the page. A part that the entry does not have is empty; reasons have all of them.

    `name` is a reason, such as `oom_killed`, or for other entries the title in the form of its anchor, such as
    `a-port-is-in-use`.
    """

    name: str
    title: str
    meaning: str
    cause: str
    check: str
    fix: str
    data: str

    @property
    def document(self) -> str:
        """The place in the documentation."""
        return f"{DOCUMENT}#{self.name}"


def explain(name: str) -> Explanation:
    """Return the entry of a reason, or of another name in `explanations()`.

    Raises:
        NotFound: the page has no such entry.
    """
    entry = explanations().get(name.strip().lower())
    if entry is None:
        raise NotFound("entry", name, by="name")
    return entry


def more(name: str) -> str:
    """A reference for an error's text: the command that prints the entry of that name."""
    return f"(more: agent-workspace explain {name})"


@cache
def explanations() -> dict[str, Explanation]:
    """All entries by name, in the order of the page."""
    entries = (_explanation(title, body) for title, body in _ENTRY.findall(PAGE.read_text()))
    return {entry.name: entry for entry in entries}


def anchor_of(heading: str) -> str:
    """Return the anchor that Markdown renderers give a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _explanation(title: str, body: str) -> Explanation:
    parts = {name.lower(): _plain(text) for name, text in _PART.findall(body)}
    fields = ("meaning", "cause", "check", "fix", "data")
    return Explanation(anchor_of(title), title, **{field: parts.get(field, "") for field in fields})


def _plain(text: str) -> str:
    return " ".join(_LINK.sub(r"\1", text).split())
