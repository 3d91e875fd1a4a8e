"""A program that prints the tests that pytest selects below a root, with their marks, as its last line.

`tests.services.forked_program` runs it. Modules of the collected tests are not imported beforehand: pytest rewrites
only modules that it imports itself.
"""

import gc
import importlib
import json
import os
from collections.abc import Sequence

import pytest

# Imported once here, and not by each run.
for name in ("_pytest.junitxml", "pytest_timeout", "worker.engine.docker_engine", "xdist.plugin"):
    importlib.import_module(name)
# At its end, pytest searches all objects for garbage, twice.
gc.freeze()

# Pytest's exit statuses with tests, and without any.
SELECTED = (0, 5)
# Only these plugins: to import all that are installed takes longer than all the rest.
PLUGINS = ("-p", "xdist", "-p", "pytest_timeout")
# Without the warning about modules that are imported before pytest could rewrite them.
UNREWRITTEN = ("-W", "ignore::pytest.PytestAssertRewriteWarning")


class Selection:
    """A plugin that records the selected tests."""

    def __init__(self) -> None:
        self.marks: dict[str, list[str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Record the marks of each test."""
        self.marks = {item.nodeid: [_name(mark) for mark in item.iter_markers()] for item in session.items}


def _name(mark: pytest.Mark) -> str:
    return f"group {mark.args[0]}" if mark.name == "xdist_group" else mark.name


def main(arguments: Sequence[str]) -> None:
    """Select with these arguments, the first of which is the root."""
    root, *options = arguments
    os.chdir(root)
    os.dup2(1, 2)  # pytest writes a usage error to standard error
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    selection = Selection()
    status = pytest.main(["--collect-only", "-q", *PLUGINS, *UNREWRITTEN, *options], plugins=[selection])
    if status in SELECTED:
        print("\n" + json.dumps(selection.marks))  # noqa: T201 - for the process that asked
