"""The product's modules import each other in no circle, so each can be the first one that a process imports.

Most tests would not see a circle, because their processes have imported everything: pytest's, and forks of
`tests.services.interpreter_server`. In a new process, one of the modules in a circle is used before it is complete.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.services.directories import REPOSITORY

PARTS = ("api", "worker", "shared", "deploy")
CIRCLES = {
    "two modules": {"a": "from b import x", "b": "if x:\n  import a"},
    "a package and its module": {"p": "from p.a import x", "p.a": "from p import x"},
    "a module and the package of another": {"p": "import a", "p.b": "", "a": "from p import b"},
}
ORDERLY = {
    "later": {"a": "from b import x", "b": "def f():\n  import a"},
    "for types": {"a": "from b import x", "b": "if TYPE_CHECKING:\n  import a"},
    "modules of a package": {"p": "from p.a import x", "p.a": "from p import b", "p.b": ""},
}


def test_modules_import_each_other_in_no_circle() -> None:
    paths = [path for part in PARTS for path in (REPOSITORY / part).rglob("*.py")]
    sources = {module_of(str(path.relative_to(REPOSITORY))): path.read_text() for path in paths}
    imports = imports_of(sources)
    assert sum(len(found) for found in imports.values()) > 3000, "this finds them all"
    assert find_circle(imports) == []


@pytest.mark.parametrize("sources", CIRCLES.values(), ids=CIRCLES)
def test_circle_is_found(sources: dict[str, str]) -> None:
    assert find_circle(imports_of(sources)) != []


@pytest.mark.parametrize("sources", ORDERLY.values(), ids=ORDERLY)
def test_import_that_waits_for_no_other_is_no_circle(sources: dict[str, str]) -> None:
    assert find_circle(imports_of(sources)) == []


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def find_circle(imports: Mapping[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def imports_of(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """The modules that each module needs to be complete when it is imported."""
    return {
        module: {
            needed
            for statement in statements_of(ast.parse(source).body)
            for needed in needed_by(statement, module, sources)
        }
        for module, source in sources.items()
    }


def statements_of(nodes: Iterable[ast.AST]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that are executed with a module: without those in functions, and those for types only."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from statements_of(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.expr):
            yield from statements_of(ast.iter_child_nodes(node))


def needed_by(statement: ast.Import | ast.ImportFrom, module: str, known: Iterable[str]) -> Iterator[str]:
    """The known modules that a statement imports, with their packages except the module's own."""
    if isinstance(statement, ast.Import):
        found = {alias.name for alias in statement.names}
    else:
        named = {f"{statement.module}.{alias.name}" for alias in statement.names}
        # A package has its modules as attributes before it is complete, but not the other names.
        found = {each if each in known else str(statement.module) for each in named}
    needed = found.union(*map(packages_of, found)).intersection(known) - {module}
    yield from (each for each in needed if each not in packages_of(module) or each in found)


def packages_of(module: str) -> list[str]:
    words = module.split(".")
    return [".".join(words[:count]) for count in range(1, len(words))]
