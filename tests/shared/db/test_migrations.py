"""The migrations: they create the models' schema, and processes may run them concurrently."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import CheckConstraint, Connection, inspect, text
from sqlalchemy.exc import IntegrityError
from sqlmodel import SQLModel

import shared.models  # noqa: F401 - fills the metadata
from deploy.migrations.__main__ import next_number
from shared.db.database import Database
from shared.db.migrations import configuration, connected, migrate, opened, revision
from shared.errors import Invalid, Unavailable
from shared.models import Node, Sandbox
from shared.states import Status
from tests.factories import ApiUser, make_sandbox
from tests.services.directories import REPOSITORY
from tests.services.interpreters import Interpreters
from tests.services.postgres import Postgres
from tests.services.stores import unmigrated

MIGRATE = "import sys; from shared.db.migrations import migrate; migrate(sys.argv[1])"


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without migrations."""
    with unmigrated(request.param, tmp_path, request) as url:
        yield url


def heads(connection: Connection) -> list[str]:
    return ScriptDirectory.from_config(configuration(connection)).get_heads()


@pytest.mark.filterwarnings("ignore:autogenerate skipping metadata-specified expression-based index")
def test_migrations_create_the_models_schema(database_url: str) -> None:
    with opened(database_url) as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, SQLModel.metadata) == []


def test_checks_and_partial_indexes_exist(database_url: str) -> None:
    """Alembic compares neither."""
    with opened(database_url) as connection:
        found, dialect = inspect(connection), connection.dialect.name
        for table in SQLModel.metadata.sorted_tables:
            checks = {str(check["name"]) for check in found.get_check_constraints(table.name)}
            expected = {str(item.name) for item in table.constraints if isinstance(item, CheckConstraint)}
            assert checks == expected, table.name
            partial = {
                index["name"]
                for index in found.get_indexes(table.name)
                if index.get("dialect_options", {}).get(f"{dialect}_where") is not None
            }
            assert partial == {
                index.name for index in table.indexes if index.dialect_options[dialect]["where"] is not None
            }


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_database_that_lacks_characters_is_refused(postgres_server: Postgres, encoding: str) -> None:
    name = f"test_{encoding.lower()}"
    options = f"ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0 STRATEGY FILE_COPY"
    with postgres_server.connect() as connection:
        connection.execute(f"CREATE DATABASE {name} {options}".encode())
    with pytest.raises(Invalid, match="ENCODING 'UTF8'"):
        migrate(postgres_server.url(name))
    with connected(postgres_server.url(name)) as empty:
        assert inspect(empty).get_table_names() == []
    postgres_server.drop(name)


def test_unknown_status_is_rejected(database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user)
    with pytest.raises(IntegrityError), database.transaction() as session:
        session.get_one(Sandbox, sandbox.id).status = "GONE"
    with pytest.raises(IntegrityError), database.transaction() as session:
        session.add(Node(id="n", status="READY?", capacity=1))
    with database.reading() as session:
        assert session.get_one(Sandbox, sandbox.id).status == Status.RUNNING


def test_dangling_reference_is_rejected(database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user)
    with pytest.raises(IntegrityError), database.transaction() as session:
        session.get_one(Sandbox, sandbox.id).owner_id = "0" * 32


def test_second_migration_is_a_no_op(empty_url: str) -> None:
    migrate(empty_url)
    migrate(empty_url)
    with opened(empty_url) as connection:
        assert [revision(connection)] == heads(connection)


ROWS = """
    INSERT INTO "user" (id, name, created_at) VALUES ('u', 'alice', '2026-01-01');
    INSERT INTO sandbox_spec
        (id, position, env, working_dir, ports, memory_bytes, cpus, pids, capabilities, created_at)
        VALUES ('image', 0, '{}', '/', '{}', 1, 1, 1, '[]', '2026-01-01');
    INSERT INTO sandbox
        (id, owner_id, spec_id, desired, generation, status, observed_generation, fence, attempt,
         session_key, session_key_digest, created_at, updated_at)
        VALUES ('s', 'u', 'image', 'PAUSED', 7, 'PAUSED', 7, 0, 0, 'k', 'd', '2026-01-01', '2026-01-01');
    INSERT INTO sandbox_transition (sandbox_id, to_status, at) VALUES ('s', 'STARTING', '2026-01-01')
"""


def test_newer_schema_is_left_to_code_that_was_rolled_back(empty_url: str) -> None:
    migrate(empty_url)
    with opened(empty_url) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    migrate(empty_url)
    with opened(empty_url) as connection:
        assert revision(connection) == "9999"


def test_migrating_preserves_stored_rows(empty_url: str) -> None:
    with opened(empty_url) as connection:
        command.upgrade(configuration(connection), "0004")
        for statement in ROWS.split(";"):
            connection.execute(text(statement))
    migrate(empty_url)
    with opened(empty_url) as connection:
        read = text(
            "SELECT generation, desired, owner_id FROM sandbox JOIN sandbox_transition ON sandbox_id = sandbox.id"
        )
        assert connection.execute(read).all() == [(7, "PAUSED", "u")]
        if connection.dialect.name == "sqlite":
            assert connection.execute(text("PRAGMA foreign_key_check")).all() == []


def test_processes_may_migrate_concurrently(empty_url: str, interpreters: Interpreters, tmp_path: Path) -> None:
    logs, processes = [tmp_path / "log-1", tmp_path / "log-2"], []
    for log in logs:
        with log.open("w") as output:
            processes.append(interpreters.start("-c", MIGRATE, empty_url, cwd=REPOSITORY, stdout=output))
    statuses = [process.wait(120) for process in processes]
    outputs = [log.read_text() for log in logs]
    assert statuses == [0, 0], outputs
    assert sum("schema_migrated" in output for output in outputs) == 1
    assert sum("schema_is_current" in output for output in outputs) == 1


def test_failed_migration_is_rolled_back(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.db.migrations.revision", _fail_after(1))
    with pytest.raises(RuntimeError, match="power cut"):
        migrate(empty_url)
    monkeypatch.undo()
    with opened(empty_url) as connection:
        assert revision(connection) is None
        assert inspect(connection).get_table_names() == []
    migrate(empty_url)


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)  # SQLite's readers block no writer
def test_migration_beside_a_long_transaction_names_it(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.db.migrations.LOCK_ATTEMPTS", 1)
    with opened(empty_url) as connection:
        command.upgrade(configuration(connection), "0032")
    with connected(empty_url) as backup:
        backup.execute(text("LOCK TABLE node IN ACCESS SHARE MODE"))
        with pytest.raises(Unavailable, match="explain a-migration-waits-for-other-transactions"):
            migrate(empty_url)


def test_migrations_have_one_head(empty_url: str) -> None:
    with opened(empty_url) as connection:
        assert len(heads(connection)) == 1


def test_next_migration_follows_the_newest(database_url: str) -> None:
    with opened(database_url) as connection:
        config = configuration(connection)
        scripts = ScriptDirectory.from_config(config)
        assert next_number(config) not in {script.revision for script in scripts.walk_revisions()}
        assert int(next_number(config)) == int(scripts.get_current_head() or 0) + 1


def _fail_after(calls: int) -> object:
    left = iter(range(calls))

    def fail(_connection: Connection) -> None:
        if next(left, None) is None:
            raise RuntimeError("power cut")

    return fail


STORED = """
    INSERT INTO conversation
        (id, owner_id, sandbox_id, listed, awaits_sandbox, title, title_settled, pr_number, agent_kind, tags,
         fence, attempt, created_at, updated_at, deleted_at)
        VALUES ('c', 'u', 's', true, false, '', false, '[]', 'a', '{}', 0, 0, '2026-01-01', '2026-01-01', NULL),
               ('d', 'u', 's', false, false, '', false, '[]', 'a', '{}', 0, 0, '2026-01-01', '2026-01-01',
                '2026-01-02');
    INSERT INTO event (conversation_id, id, kind, timestamp, body)
        VALUES ('c', 'e1', 'k', '2026-01-01', '{}'), ('c', 'e2', 'k', '2026-01-01', '{"a":1}'),
               ('d', 'e1', 'k', '2026-01-01', '{}')
"""


def test_migration_counts_the_stored_bytes(empty_url: str) -> None:
    for revision_id, statements in (("0004", ROWS), ("0023", STORED)):
        with opened(empty_url) as connection:
            command.upgrade(configuration(connection), revision_id)
            for statement in statements.split(";"):
                connection.execute(text(statement.replace(":1}", r"\:1}")))
    migrate(empty_url)
    with opened(empty_url) as connection:
        assert connection.execute(text("SELECT * FROM stored_usage")).all() == [("u", 1, 3, 11)]
