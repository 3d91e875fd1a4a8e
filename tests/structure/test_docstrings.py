"""Docstrings: the errors that they name exist."""

import ast
import builtins
import re
from collections.abc import Iterable, Iterator

from tests.services.directories import REPOSITORY

FOLDERS = ("api", "deploy", "shared", "worker", "tests")
SECTION = re.compile(r"^ *Raises:\s*(.*?)(?:\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)
# The names before the colon, at the beginning of a line or of a sentence: `Conflict: …`, `NotFound, Invalid: …`.
NAMES = re.compile(r"(?:^|(?<=\. ))([A-Z][\w.]*(?:, [A-Z][\w.]*)*): ", re.MULTILINE)


def test_errors_that_docstrings_name_exist() -> None:
    texts = {path: path.read_text() for folder in FOLDERS for path in sorted((REPOSITORY / folder).rglob("*.py"))}
    trees = ((path, ast.parse(text)) for path, text in texts.items() if "Raises:" in text)
    named = [(path.relative_to(REPOSITORY), name) for path, tree in trees for name in _errors(tree)]
    assert len(named) > 300
    unknown = _find_unknown({name.rpartition(".")[2] for _, name in named}, texts.values())
    assert [(str(path), name) for path, name in named if name.rpartition(".")[2] in unknown] == []


def _find_unknown(names: set[str], texts: Iterable[str]) -> set[str]:
    """The names that are in none of the texts. It parses few of them: to parse all takes seconds."""
    unknown = names - set(dir(builtins))
    for text in texts:
        if not unknown:
            break
        unknown -= set(_identifiers(ast.parse(text)))
    return unknown


def _errors(tree: ast.Module) -> Iterator[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for text in (ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)):
        for section in SECTION.findall(text):
            for names in NAMES.findall(re.sub(r"^ +", "", section, flags=re.MULTILINE)):
                yield from names.split(", ")


def _identifiers(tree: ast.Module) -> Iterator[str]:
    """The names of classes, imports and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.alias):
            yield node.name
        elif isinstance(node, ast.Attribute):
            yield node.attr
