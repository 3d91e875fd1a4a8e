"""Fixtures: a store of each kind, people, and the parts of a process, nothing of which reads the developer's own."""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from api.context import Context
from api.lookout import Lookout
from api.streams import Streams
from shared.crypto import Vault
from shared.database import Database
from shared.logs import configure_logs
from shared.models import Node, SandboxSpec
from shared.settings import Settings
from tests.doubles import RecordingPublisher
from tests.factories import SECRET_KEY, VAULT, Person, make_node, make_person, make_spec
from tests.services.postgres import Postgres, running_postgres
from tests.services.stores import PostgresStores, SqliteStores, Stores
from tests.services.valkey import Valkey, running_valkey

with warnings.catch_warnings():
    # It would rather have httpx2; the first import alone says so, and every test file gets this one.
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AW_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """A real PostgreSQL server of this test process."""
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def sqlite_stores(tmp_path_factory: pytest.TempPathFactory) -> SqliteStores:
    """Where fresh SQLite databases come from."""
    return SqliteStores(tmp_path_factory.mktemp("template") / "template.db")


@pytest.fixture(scope="session")
def postgres_stores(postgres_server: Postgres) -> PostgresStores:
    """Where fresh PostgreSQL databases come from."""
    return PostgresStores(postgres_server)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A migrated, empty database of the test's own; each test runs on both kinds."""
    stores: Stores = request.getfixturevalue(
        {"sqlite": "sqlite_stores", "postgresql": "postgres_stores"}[request.param]
    )
    with stores.fresh(tmp_path) as url:
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


@pytest.fixture
def publisher() -> RecordingPublisher:
    """What was published, in `jobs`."""
    return RecordingPublisher()


@pytest.fixture
def here(settings: Settings, database: Database, vault: Vault, publisher: RecordingPublisher) -> Context:
    """The parts of an API process."""
    return Context(
        settings=settings,
        database=database,
        vault=vault,
        publisher=publisher,
        lookout=Lookout(database),
        streams=Streams(database),
    )


@pytest.fixture
def client(here: Context) -> Iterator[TestClient]:
    """An HTTP client of the application; a defect is a 500, as it is for everybody."""
    from api.app import create_app  # noqa: PLC0415 - all the routes, which most tests don't need

    with TestClient(create_app(here), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def user(database: Database) -> Person:
    """Somebody with a key."""
    return make_person(database, "alice")


@pytest.fixture
def other_user(database: Database) -> Person:
    """Somebody else with a key."""
    return make_person(database, "bob")


@pytest.fixture
def spec(database: Database) -> SandboxSpec:
    """The default spec."""
    return make_spec(database)


@pytest.fixture
def node(database: Database) -> Node:
    """A READY node with room."""
    return make_node(database)


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[Valkey]:
    """A real broker of this test process."""
    with running_valkey() as server:
        yield server


@pytest.fixture
def valkey(valkey_server: Valkey) -> Iterator[Valkey]:
    """A real broker, running and empty; a test may stop, kill or stall it."""
    valkey_server.start()
    valkey_server.flush()
    yield valkey_server
    valkey_server.wake()


@pytest.fixture
def broker_url(valkey: Valkey) -> str:
    """Kombu's URL of a real, empty broker."""
    return valkey.url


@pytest.fixture(scope="session", autouse=True)
def _logs() -> None:
    configure_logs(Settings(log_format="json"), "tests")
