"""What the API asks of agent servers, found in its source: every call of `ask` or `ask_at` that is no GET."""

import ast
from collections.abc import Iterator
from pathlib import Path

ASKING = {"ask": 1, "ask_at": 2}  # where their method is among the arguments; the path follows it


def write_kinds(source: str) -> set[str]:
    """The kinds of the points that these calls meet: `agent_server.` and the last word of the path."""
    return {f"agent_server.{word}" for function in _functions(ast.parse(source)) for word in _words(function)}


def all_write_kinds(folder: Path) -> set[str]:
    """Those of all files below a folder that have to do with agent servers."""
    texts = [file.read_text() for file in folder.rglob("*.py")]
    return set().union(*(write_kinds(text) for text in texts if "agent_servers" in text))


def _functions(tree: ast.AST) -> Iterator[ast.AST]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _words(function: ast.AST) -> Iterator[str]:
    for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Attribute) and "agent_servers" in ast.unparse(call.func):
            place = ASKING.get(call.func.attr)
            if place is not None and ast.unparse(call.args[place]) != "'GET'":
                yield _last_word(call.args[place + 1], function)


def _last_word(path: ast.expr, function: ast.AST) -> str:
    """What follows the last slash of a path, which may be a variable of the function."""
    if isinstance(path, ast.Name):
        path = _assigned(path.id, function)
    last = path.values[-1] if isinstance(path, ast.JoinedStr) else path
    assert isinstance(last, ast.Constant), f"the last word of {ast.unparse(path)} is not known before it is asked for"
    return str(last.value).rpartition("/")[2]


def _assigned(name: str, function: ast.AST) -> ast.expr:
    [value] = [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]
    ]
    return value
