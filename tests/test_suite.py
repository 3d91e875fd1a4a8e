"""The test suite: each test asserts something, and no file is too long."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.services.directories import REPOSITORY

TESTS = REPOSITORY / "tests"
MAX_LINES = 300
# Only remove entries, when a file has been split or a test has got an assertion; add none.
STILL_LONGER: set[str] = set()
STILL_WITHOUT: set[str] = set()
# Functions that raise AssertionError, besides those whose names begin with the prefixes below.
ASSERTING = {"eventually", "raises", "go", "run_state_machine_as_test"}
ASSERTING_PREFIXES = ("assert_", "await_")


def test_no_test_file_is_too_long() -> None:
    longer = {name(path): lines for path in TESTS.rglob("*.py") if (lines := count_lines(path)) > MAX_LINES}
    assert longer.keys() == STILL_LONGER, f"longer than {MAX_LINES} lines, or listed and no longer so: {longer}"


def test_no_test_is_without_an_assertion() -> None:
    tests = [(path, test) for path in sorted(TESTS.rglob("test_*.py")) for test in functions_in(path.read_text())]
    assert {"test_suite.py", "api/request/test_authentication.py"} <= {name(path) for path, _ in tests}, (
        "this lists them all"
    )
    assert {f"{name(path)}::{test.name}" for path, test in tests if not asserts(test)} == STILL_WITHOUT


def test_test_without_an_assertion_is_found() -> None:
    source = """
def test_that_calls(): act()
def test_that_loops():
    for x in y: assert x
class Tests:
    def test_that_is_helped(self): assert_settled()
"""
    assert [asserts(test) for test in functions_in(source)] == [False, True, True]


def name(path: Path) -> str:
    return str(path.relative_to(TESTS))


def count_lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def functions_in(source: str) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node


def asserts(test: ast.FunctionDef) -> bool:
    return any(
        isinstance(node, ast.Assert) or (isinstance(node, ast.Call) and calls_one(node)) for node in ast.walk(test)
    )


def calls_one(node: ast.Call) -> bool:
    """Whether the called function asserts."""
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return called in ASSERTING or called.startswith(ASSERTING_PREFIXES)
