"""A pytest plugin that records the selected tests, and the lost processes of xdist."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the output file."""
    parser.getgroup("stages").addoption("--record", type=Path, help="JSON file for the selected tests")


def pytest_configure(config: pytest.Config) -> None:
    """Record in the main process, not in those that xdist starts."""
    if config.option.record and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(config.option.record))


class Recorder:
    """Records the selection. Writes immediately, because the process may die at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._selected: list[str] = []
        self._lost: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Record the selection of this process, which runs the tests itself."""
        self._select([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """Record the selection of an xdist process; all processes have the same one."""
        self._select(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Record the loss of a process; without an error, it ended as requested."""
        if error:
            self._lost.append(f"{node.gateway.id}: {error}")
            self._write()

    def _select(self, ids: Sequence[str]) -> None:
        self._selected = list(ids)
        self._write()

    def _write(self) -> None:
        self._path.write_text(json.dumps({"selected": self._selected, "lost": self._lost}))
