"""Databases of each kind, and settings independent of the developer's; `tests/fixtures` has more fixtures."""

import gc
import os
import re
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path

import pytest
from pydantic import SecretStr

from shared import clock
from shared.crypto import Vault
from shared.db.database import Database
from shared.observability.logs import configure_logs
from shared.settings import Settings
from tests.factories import SECRET_KEY, VAULT
from tests.kinds import DATABASES, kind_of
from tests.services.compiled_once import compiled_once
from tests.services.directories import short_directory
from tests.services.postgres import Postgres, running_postgres
from tests.services.stores import PostgresStores, SqliteStores, Stores

pytest_plugins = [
    "tests.fixtures.agent_servers",
    "tests.fixtures.agents",
    "tests.fixtures.api",
    "tests.fixtures.broker",
    "tests.fixtures.containers",
    "tests.fixtures.deployments",
    "tests.fixtures.engines",
    "tests.fixtures.git_host",
    "tests.fixtures.interpreters",
    "tests.fixtures.model",
    "tests.fixtures.users",
    "tests.fixtures.rows",
    "tests.selection",
]


# The numbers of the tests' directories, and the part of a test's name in theirs: they contain sockets, whose paths are
# limited.
_DIRECTORIES = count()
MAX_NAME = 24

# No garbage collection during imports and test collection, which create a million objects, all of them permanent.
gc.disable()


def pytest_collection_finish() -> None:
    """Exclude imported and collected objects from garbage collection, which took 7 % of all tests' time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AW_")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _own_clock() -> Iterator[None]:
    yield
    clock._reading = None  # a test may set this machine's clock


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for one test. For pytest's own, it reads the names of all earlier tests' directories."""
    name = re.sub(r"\W", "_", request.node.name)[:MAX_NAME]
    path = tmp_path_factory.getbasetemp() / f"{name}{next(_DIRECTORIES)}"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """A real PostgreSQL server of this test process."""
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def sqlite_stores() -> Iterator[SqliteStores]:
    """The source of new SQLite databases."""
    with short_directory("sqlite", in_memory=True) as directory:
        yield SqliteStores(directory / "template.db")


@pytest.fixture(scope="session")
def postgres_stores(postgres_server: Postgres) -> Iterator[PostgresStores]:
    """The source of new and cleared PostgreSQL databases."""
    stores = PostgresStores(postgres_server)
    yield stores
    stores.close()


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A migrated, empty database for one test; each test runs on both kinds."""
    stores: Stores = request.getfixturevalue(
        {"sqlite": "sqlite_stores", "postgresql": "postgres_stores"}[request.param]
    )
    needs_own = kind_of(request.node) != "unit" or request.node.get_closest_marker("own_database")
    with (stores.fresh if needs_own else stores.cleared)() as url:
        yield url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """The database."""
    database = Database(database_url)
    yield database
    database.close()


@pytest.fixture
def vault() -> Vault:
    """The vault, which the factories use, too."""
    return VAULT


@pytest.fixture
def settings(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings with a temporary var directory, and without a client port."""
    monkeypatch.chdir(tmp_path)  # there is no var/env here
    var = tmp_path / "var"
    var.mkdir(mode=0o700)
    return _test_settings().model_copy(update={"var_dir": var, "database_url": database_url})


@cache
def _test_settings() -> Settings:
    # Reading the environment, which has none of these variables, takes 2.5 ms each time.
    return Settings(secret_keys=SecretStr(SECRET_KEY), client_port=0)


@pytest.fixture(scope="session", autouse=True)
def _compiled_once() -> Iterator[None]:
    with compiled_once():
        yield


@pytest.fixture(scope="session", autouse=True)
def _logs() -> None:
    configure_logs(Settings(log_format="json"), "tests")
