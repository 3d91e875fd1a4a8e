"""The field's words: those that only this project used must not come back (docs/concepts/glossary.md)."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.directories import REPOSITORY

FOLDERS = ("api", "deploy", "docs", "shared", "tests", "worker")
FILES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "Procfile")
SUFFIXES = (".md", ".py", ".sh", ".toml")
# Generated, recorded, or written for a schema that is in use.
LEFT_OUT = ("deploy/migrations/versions/", "tests/contract/recordings/", "tests/docs/test_words.py")
# Names of columns and former public names (of log events, too): they go with a later release. A kernel's word.
ALLOWED = re.compile(
    r"wish_reason|sandbox_leftover|reaping_leftover|told_generation|Wish-Settled|AW_[A-Z_]+|`evacuated`|`node_judged`"
    r'|"THAWED"'
)
WORDS = (
    r"wish(?:e[sd]|ing)?",
    r"glanc(?:e[sd]?|ing)",
    r"hurr(?:y|ie[sd]|ying)",
    r"whoever",
    r"somebody",
    r"nobody",
    r"everybody",
    r"anew",
    r"doings",
    r"lookouts?",
    r"acquit(?:s|ted)?",
    r"entomb(?:s|ed)?",
    r"evacuat(?:e[sd]?|ing|ion)",
    r"rouse[sd]?",
    r"heed(?:s|ed)?",
    r"behind (?:our|its|the service's) back",
    r"by other hands",
    r"given again",
    r"in the midst of",
    r"signs? of life",
    r"defects? of ours",
    r"looks? about",
    r"unheard",
    r"take turns",
    r"leftovers?",
    r"told_[a-z]+",
    r"announc(?:e[sd]?|ing)",
    r"blame[sd]?",
    r"bur(?:y|ie[sd]|ying)",
    r"conclude[sd]?",
    r"converg(?:e[sd]?|ing|ence)",
    r"hand(?:s|ed|ing)? on",
    r"impatient",
    r"in vain",
    r"judg(?:e[sd]?|ing)",
    r"keepers?",
    r"kept (?:answers?|statements?)",
    r"likewise",
    r"looks? again",
    r"needy",
    r"obtain(?:s|ed|ing)?",
    r"patien(?:ce|t|tly)",
    r"polite(?:ly)?",
    r"so (?:many|long|often)",
    r"tend(?:s|ed|ing)?",
    r"thaw(?:s|ed)?",
    r"unanswered",
    r"vouch(?:es|ed)?",
)
FORBIDDEN = re.compile(rf"(?<![A-Za-z])(?:{'|'.join(WORDS)})(?![a-z])", re.IGNORECASE)


def test_text_contains_no_forbidden_word() -> None:
    found = {name: words for name, text in texts() if (words := forbidden(text))}
    assert found == {}


@pytest.mark.parametrize("text", ["a wish", "set_wish", "Wished", "what is made anew", "behind our back", "nobody's"])
def test_forbidden_word_is_found(text: str) -> None:
    assert forbidden(text)


@pytest.mark.parametrize("text", ["desired state", "the column wish_reason", "wishlist", "AW_WISHES"])
def test_standard_term_is_not_found(text: str) -> None:
    assert not forbidden(text)


def forbidden(text: str) -> list[str]:
    return sorted({match.group(0) for match in FORBIDDEN.finditer(ALLOWED.sub("", text))})


def texts() -> Iterator[tuple[str, str]]:
    paths = [path for folder in FOLDERS for path in sorted((REPOSITORY / folder).rglob("*")) if path.suffix in SUFFIXES]
    for path in [*paths, *(REPOSITORY / name for name in FILES)]:
        name = str(path.relative_to(REPOSITORY))
        if not name.startswith(LEFT_OUT):
            yield name, path.read_text() + " " + Path(name).stem
