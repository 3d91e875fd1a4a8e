"""Rows are locked by `shared.sql.statements`, which reads them again; a `refresh` does so, too."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.structure.test_structure import PARTS, files_of, name

LOCKS = "shared/sql/statements.py"


def test_rows_are_locked_in_one_module() -> None:
    found = {name(path): lines for part in PARTS for path in files_of(part) if (lines := list(locking_lines(path)))}
    assert len(found.pop(LOCKS)) == 2, "this finds both ways"
    assert found == {}


def locking_lines(path: Path) -> Iterator[int]:
    """The lines that lock rows and may return what the session read before it had the lock."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=ast.Attribute(attr="refresh")):
                pass
            case ast.Call(func=ast.Attribute(attr="with_for_update")):
                yield node.lineno
            case ast.Call() if any(keyword.arg == "with_for_update" for keyword in node.keywords):
                yield node.lineno
