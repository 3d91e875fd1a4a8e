"""Each column that describes the state of a sandbox or a conversation is written in one module (laws 2, 6)."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.services.directories import REPOSITORY
from tests.structure.test_structure import PARTS, files_of, name

# The calls whose keywords are columns to write.
WRITING_CALLS = {"Sandbox", "add_sandbox", "Conversation", "values", "write"}
# Modules in which the name belongs to another column: of a node, of a device login, of a change entry, and of a list's
# filter; or to no column: to a command, to the output of commands, and to a condition.
OTHERS = {
    "generation": {"shared/sandboxes/status.py"},
    "status": {
        "shared/nodes/registry.py",
        "shared/users/device_authorizations.py",
        "shared/changes/recorder.py",
        "shared/sandboxes/lists.py",
        "shared/cli/app.py",
        "shared/cli/local/status_operations.py",
        "shared/cli/remote/sandboxes.py",
    },
}


@pytest.mark.parametrize(
    ("column", "modules"),
    [
        ("status", {"shared/sandboxes/status.py"}),
        ("generation", {"shared/sandboxes/desired_state.py"}),
        ("observed_generation", {"shared/sandboxes/status.py"}),
        ("execution_status", {"shared/conversations/webhook_reports.py"}),
        ("desired", {"shared/sandboxes/desired_state.py", "shared/warm_pool/start.py"}),  # `start.py`: of new rows
    ],
)
def test_column_is_written_in_its_module(column: str, modules: set[str]) -> None:
    writers = {name(path) for part in PARTS for path in files_of(part) if column in written_columns(path)}
    assert writers - OTHERS.get(column, set()) == modules


def test_history_is_written_where_status_is() -> None:
    texts = {name(path): path.read_text() for path in files_of("shared") if path.parent.name != "models"}
    users = {file for file, text in texts.items() if "SandboxTransition" in text}
    readers = {"shared/sandboxes/queries.py", "shared/admin/sandbox_lists.py"}
    assert users == {"shared/sandboxes/status.py", *readers}


@cache
def written_columns(path: Path) -> set[str]:
    has_sql = path.is_relative_to(REPOSITORY / "shared")
    nodes = ast.walk(ast.parse(path.read_text()))
    return {column for node in nodes if has_sql or not isinstance(node, ast.Dict) for column in _written_by(node)}


def _written_by(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Attribute(value=ast.Name(id=variable), attr=column, ctx=ast.Store()) if variable != "self":
            yield column
        case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)) if called in WRITING_CALLS:
            yield from (keyword.arg for keyword in node.keywords if keyword.arg)
        case ast.Dict():
            yield from (key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
