"""Every reason is written by the product, and a test expects it."""

import ast
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from shared.states import Reason
from tests.structure.test_structure import PARTS, files_of

REASONS = {reason.value: reason.name for reason in Reason}
MENTIONS = ("Reason.", *REASONS)
# The calls whose arguments are expected values.
EXPECTATIONS = ("assert_", "await_", "eventually", "parametrize")

IsIgnored = Callable[[ast.AST], bool]


def test_every_reason_is_written() -> None:
    files = [path for part in PARTS for path in files_of(part)]
    written = {name for tree in parse(files) for name in names_in(tree, is_read)}
    assert [reason.name for reason in Reason if reason.name not in written] == []


def test_every_reason_is_expected_by_a_test() -> None:
    trees = parse(path for path in files_of("tests") if path.name.startswith("test_"))
    expected = {name for tree in trees for node in ast.walk(tree) if is_expectation(node) for name in names_in(node)}
    assert [reason.name for reason in Reason if reason.name not in expected] == []


def parse(files: Iterable[Path]) -> Iterator[ast.Module]:
    """The files that mention a reason."""
    for path in files:
        text = path.read_text()
        if any(mention in text for mention in MENTIONS):
            yield ast.parse(text)


def names_in(node: ast.AST, is_ignored: IsIgnored = lambda _node: False) -> Iterator[str]:
    """The reasons in a tree, by name or as text."""
    if is_ignored(node):
        return
    match node:
        case ast.Attribute(value=ast.Name(id="Reason"), attr=name):
            yield name
        case ast.Constant(value=str(text)) if text in REASONS:
            yield REASONS[text]
    for child in ast.iter_child_nodes(node):
        yield from names_in(child, is_ignored)


def is_read(node: ast.AST) -> bool:
    """Whether a node compares reasons or defines them."""
    return isinstance(node, ast.Compare) or (isinstance(node, ast.ClassDef) and node.name == Reason.__name__)


def is_expectation(node: ast.AST) -> bool:
    """Whether a node states what a test expects."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name.startswith(EXPECTATIONS)
    return isinstance(node, ast.Assert)
