"""Databases for services that migrate them by themselves, a git server, and a service of root that tests share."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import effort
from tests.services.directories import short_directory
from tests.services.engine import TINY_IMAGE
from tests.services.git_http import GitServer, running_git_server
from tests.services.private_engine import PrivateEngine
from tests.services.stores import unmigrated
from tests.services.supervised import SupervisedService, running_supervised

TOKEN = "git-token-that-must-not-leak"
FILES = {
    "README.md": "An application.\n",
    ".openhands/setup.sh": "echo prepared > prepared.txt\n",
    ".openhands/pre-commit.sh": "exit 0\n",
}
# An image that `make run` does not build by itself.
IMAGE = "supervised/tiny:1"
# Processes of each kind.
COUNT = effort.choose(quick=1, change=1, thorough=2)


@pytest.fixture
def git_server(tmp_path: Path, engine: PrivateEngine) -> Iterator[GitServer]:
    """A git server with two repositories, one of which has a broken script."""
    with running_git_server(tmp_path, password=TOKEN, address=engine.gateway) as server:
        server.add_repository("acme/app", [FILES])
        server.add_repository("acme/broken", [{".openhands/setup.sh": "echo no such luck >&2; exit 7\n"}])
        yield server


class ServiceOfRoot:
    """The service as root starts it without users for its processes. It runs until a test ends it."""

    def __init__(self, engine: PrivateEngine, folders: ExitStack) -> None:
        self._engine, self._folders = engine, folders
        self._processes = ExitStack()
        self._running: SupervisedService | None = None

    def start(self) -> SupervisedService:
        """Start the service in a new directory, unless it runs."""
        if self._running is None:
            self._engine.docker("tag", TINY_IMAGE, IMAGE)
            var = self._folders.enter_context(short_directory("supervised", in_memory=True))
            numbers = (f"web={COUNT}", f"worker={COUNT}", "flower=0")
            service = running_supervised(self._engine, *numbers, var=var, AW_DEFAULT_SANDBOX_IMAGE=IMAGE)
            self._running = self._processes.enter_context(service)
        return self._running

    def end(self) -> None:
        """Stop the service, and keep its directory."""
        self._running = None
        self._processes.close()


@pytest.fixture(scope="session")
def service_of_root(dedicated_engine: PrivateEngine) -> Iterator[ServiceOfRoot]:
    """The service of root, which each test starts."""
    with ExitStack() as folders:
        service = ServiceOfRoot(dedicated_engine, folders)
        try:
            yield service
        finally:
            service.end()


@pytest.fixture
def empty_url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database without migrations."""
    with unmigrated(kind, tmp_path, request) as url:
        yield url
