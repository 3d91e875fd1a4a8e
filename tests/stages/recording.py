"""A pytest plugin that writes down which tests were selected, and which of xdist's processes were lost."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where to write."""
    parser.getgroup("stages").addoption("--record", type=Path, help="JSON file for the selected tests")


def pytest_configure(config: pytest.Config) -> None:
    """Write in the process that reports, not in those that xdist starts."""
    if config.option.record and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(config.option.record))


class Recorder:
    """Writes at once: what happens later may be the end of the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._selected: list[str] = []
        self._lost: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Tests run in this process."""
        self._select([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """Tests run in processes that have selected the same ones."""
        self._select(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """One of these processes is gone; without an error it was told to end."""
        if error:
            self._lost.append(f"{node.gateway.id}: {error}")
            self._write()

    def _select(self, ids: Sequence[str]) -> None:
        self._selected = list(ids)
        self._write()

    def _write(self) -> None:
        self._path.write_text(json.dumps({"selected": self._selected, "lost": self._lost}))
