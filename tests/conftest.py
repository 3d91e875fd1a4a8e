"""A store of each kind, and settings that are not the developer's own; `tests/fixtures` has more fixtures."""

import gc
import os
from collections.abc import Iterator
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
    "tests.fixtures.model",
    "tests.fixtures.people",
    "tests.fixtures.rows",
    "tests.selection",
]


def pytest_configure() -> None:
    """Look for garbage less often than by default: collecting makes a million objects that stay."""
    gc.set_threshold(50_000, 20, 20)


def pytest_collection_finish() -> None:
    """Keep what was imported and collected from the garbage collector: to walk it took 7 % of all tests' time."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AW_")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _own_clock() -> Iterator[None]:
    yield
    clock.follow_nothing()  # a test may set this machine's clock


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """A real PostgreSQL server of this test process."""
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def sqlite_stores() -> Iterator[SqliteStores]:
    """Where fresh SQLite databases come from."""
    with short_directory("sqlite", in_memory=True) as directory:
        yield SqliteStores(directory / "template.db")


@pytest.fixture(scope="session")
def postgres_stores(postgres_server: Postgres) -> Iterator[PostgresStores]:
    """Where fresh and cleared PostgreSQL databases come from."""
    stores = PostgresStores(postgres_server)
    yield stores
    stores.close()


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A migrated, empty database that nothing else uses meanwhile; each test runs on both kinds."""
    stores: Stores = request.getfixturevalue(
        {"sqlite": "sqlite_stores", "postgresql": "postgres_stores"}[request.param]
    )
    needs_own = kind_of(request.node) != "unit" or request.node.get_closest_marker("own_database")
    with (stores.fresh if needs_own else stores.cleared)(tmp_path) as url:
        yield url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """The store."""
    database = Database(database_url)
    yield database
    database.close()


@pytest.fixture
def vault() -> Vault:
    """The vault that the factories use too."""
    return VAULT


@pytest.fixture
def settings(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A configuration with a var directory of its own."""
    monkeypatch.chdir(tmp_path)  # there is no var/env here
    var = tmp_path / "var"
    var.mkdir(mode=0o700)
    return Settings(var_dir=var, database_url=database_url, secret_keys=SecretStr(SECRET_KEY))


@pytest.fixture(scope="session", autouse=True)
def _compiled_once() -> Iterator[None]:
    with compiled_once():
        yield


@pytest.fixture(scope="session", autouse=True)
def _logs() -> None:
    configure_logs(Settings(log_format="json"), "tests")
