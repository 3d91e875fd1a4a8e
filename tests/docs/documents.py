"""The documents of the repository, and the parts of them that tests compare with the code."""

import re
from pathlib import Path

from shared.reasons import anchor_of
from tests.services.directories import REPOSITORY

README = REPOSITORY / "README.md"
DOCS = REPOSITORY / "docs"
PICTURES = DOCS / "images"
AUDIENCES = ("start", "use", "concepts", "operate", "reference")
# Every document that is kept true.
DOCUMENTS = [*sorted(REPOSITORY.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
# Those for users and operators.
PAGES = [README, DOCS / "README.md", *(page for name in AUDIENCES for page in sorted((DOCS / name).glob("*.md")))]

FENCED = re.compile(r"^ *```\w*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)


def read_page(name: str) -> str:
    """Return the text of a page below docs/, such as `reference/api.md`."""
    return (DOCS / name).read_text()


def read_section(text: str, heading: str) -> str:
    """Return what is below a heading, up to the next one of its level or a higher one."""
    found = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert found is not None, heading
    rest = text[found.end() :]
    after = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: after.start()] if after else rest


def list_code(text: str) -> list[str]:
    """Return the lines of code of a document: those of blocks, and inline code."""
    blocks = [line.strip() for block in FENCED.findall(text) for line in block.splitlines()]
    return blocks + list_inline_code(text)


def list_inline_code(text: str) -> list[str]:
    """Return what stands between backticks in the prose and the tables of a document."""
    return INLINE.findall(FENCED.sub("", text))


def anchors_of(document: Path) -> list[str]:
    """Return the anchors of a document."""
    return [anchor_of(heading) for _, heading in HEADING.findall(FENCED.sub("", document.read_text()))]
