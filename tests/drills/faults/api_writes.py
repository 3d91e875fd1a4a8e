"""The API's writes to agent servers, found in its source: every call of `REQUESTS` that is not a GET."""

import ast
from collections.abc import Iterator
from pathlib import Path

from shared.agent_server import paths

# The position of the HTTP method among the arguments; the path follows it.
REQUESTS = {"request": 1, "exchange": 1, "request_at": 2, "exchange_at": 2}
# The placeholder for a part of a path that is not in the source.
UNKNOWN = "?"


def write_kinds(source: str) -> set[str]:
    """The kinds of the points that the calls in a source reach: `agent_server.` and the last word of the path."""
    return {f"agent_server.{word}" for function in _functions(ast.parse(source)) for word in _words(function)}


def all_write_kinds(folder: Path) -> set[str]:
    """The kinds of the points that all files below a folder reach by calls of agent servers."""
    texts = [file.read_text() for file in folder.rglob("*.py")]
    return set().union(*(write_kinds(text) for text in texts if "agent_servers" in text))


def _functions(tree: ast.AST) -> Iterator[ast.AST]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _words(function: ast.AST) -> Iterator[str]:
    for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Attribute) and "agent_servers" in ast.unparse(call.func):
            place = REQUESTS.get(call.func.attr)
            if place is not None and ast.unparse(call.args[place]) != "'GET'":
                yield _last_word(call.args[place + 1], function)


def _last_word(path: ast.expr, function: ast.AST) -> str:
    """The part after the last slash of a path: a constant or a call of `paths`, which a variable may hold."""
    if isinstance(path, ast.Name):
        path = _assigned(path.id, function)
    name, arguments = (path.func, path.args) if isinstance(path, ast.Call) else (path, [])
    known = getattr(paths, name.attr) if isinstance(name, ast.Attribute) else UNKNOWN
    values = [str(part.value) if isinstance(part, ast.Constant) else UNKNOWN for part in arguments]
    text = str(known(*values) if callable(known) else known)
    assert not text.endswith(UNKNOWN), f"the last word of {ast.unparse(path)} is not in the source"
    return text.rpartition("/")[2]


def _assigned(name: str, function: ast.AST) -> ast.expr:
    [value] = [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]
    ]
    return value
