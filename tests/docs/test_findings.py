"""The report of findings names tests that exist."""

import ast
import re

from tests.docs.documents import read_page
from tests.services.directories import REPOSITORY

NAMED = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)`")


def test_every_named_test_exists() -> None:
    named = NAMED.findall(read_page("reports/findings.md"))
    assert len(named) > 100
    assert [f"{path}::{name}" for path, name in named if name not in _list_tests(path)] == []


def _list_tests(path: str) -> set[str]:
    body = ast.parse((REPOSITORY / path).read_text()).body
    classes = [item for item in body if isinstance(item, ast.ClassDef)]
    methods = {f"{item.name}::{name}" for item in classes for name in _functions(item.body)}
    return _functions(body) | methods


def _functions(body: list[ast.stmt]) -> set[str]:
    return {item.name for item in body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}
