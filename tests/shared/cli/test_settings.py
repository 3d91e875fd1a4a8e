"""`settings`, help, and one-line errors for operators' mistakes."""

from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from shared.cli.exits import error_text
from shared.db.database import Database
from tests.shared.cli.results import Cli, assert_complains, rows


@pytest.mark.parametrize(
    ("broker", "store"),
    [
        ("u:hush-2@broker.test:1/0", "u:hush-3@store.test/d"),
        (":hush@2@broker.test:1/0", "u:hush/3:hush@store.test/d"),
        ("broker.test:1/0?password=hush-2&x=y", "store.test/d?user=u&password=hush-3"),
    ],
)
def test_configuration_is_shown_without_its_secrets(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, broker: str, store: str
) -> None:
    monkeypatch.setenv("AW_SECRET_KEYS", "hush-1")
    monkeypatch.setenv("AW_REDIS_URL", f"redis://{broker}")
    monkeypatch.setenv("AW_DATABASE_URL", f"postgres://{store}")
    response = cli("settings", "show")
    shown = {row[0]: row[1] for row in rows(response)}
    assert "hush" not in response.out
    assert shown["AW_PORT"] == "3000"
    assert "store.test" in shown["database"]
    assert "broker.test" in shown["broker"]


def test_malformed_variable_is_named_without_its_value(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_PORT", "hush")
    response = cli("users", "list")
    assert_complains(response, "AW_PORT")
    assert "hush" not in response.err


def test_settings_that_are_not_text_are_named(cli: Cli, var: Path) -> None:
    var.mkdir()
    (var / "env").write_bytes("AW_WEB_URL=http://hüsh.test\n".encode("latin-1"))
    assert_complains(cli("users", "list"), "it is not text in UTF-8: 'var/env'")


@pytest.mark.parametrize("command", [("users", "list"), ("settings", "show"), ("doctor", "--only", "installation")])
@pytest.mark.parametrize(
    ("variable", "url"),
    [
        ("AW_DATABASE_URL", "postgresql://u:a@hush:5x@store.test:5432/d"),
        ("AW_DATABASE_URL", "postgres://u:a@hush@store.test/d"),
        ("AW_DATABASE_URL", "mysql://u:hush@store.test/d"),
        ("AW_REDIS_URL", "redis://:hush/2@broker.test:1/0"),
        ("AW_REDIS_URL", "redis://:2/hush@broker.test:1/0"),
    ],
)
def test_unusable_url_is_named_without_its_password(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], variable: str, url: str
) -> None:
    monkeypatch.setenv(variable, url)
    response = cli(*command)
    assert "hush" not in response.out + response.err
    assert_complains(response, variable)


def test_missing_database_is_one_line(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_DATABASE_URL", f"sqlite:///{tmp_path / 'none.db'}")
    assert_complains(cli("users", "list"), "agent-workspace db migrate")
    assert not (tmp_path / "none.db").exists()
    monkeypatch.setenv("AW_DATABASE_URL", "postgres://u:hush@127.0.0.1:1/d")
    response = cli("users", "list")
    assert_complains(response)
    assert "hush" not in response.err


def test_database_without_tables_is_one_line(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty.db").touch()
    monkeypatch.setenv("AW_DATABASE_URL", f"sqlite:///{tmp_path / 'empty.db'}")
    assert_complains(cli("users", "list"), "agent-workspace db migrate")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # the tests share PostgreSQL's tables
def test_database_without_a_column_of_this_version_is_one_line(migrated: Cli, database: Database) -> None:
    """The code may have been updated without a migration."""
    with database.transaction() as session:
        session.connection().execute(text("ALTER TABLE node DROP COLUMN impaired_reason"))
    for command in (("status",), ("nodes", "list")):
        assert_complains(migrated(*command), "outdated: run `agent-workspace db migrate`")


@pytest.mark.parametrize("what", ['relation "node"', "column node.impaired_reason"])
def test_outdated_schema_of_postgresql_is_recognized(what: str) -> None:
    error = ProgrammingError("SELECT", None, Exception(f"{what} does not exist\nLINE 1: SELECT node.id"))
    assert "outdated: run `agent-workspace db migrate`" in error_text(error, "agent-workspace")


def test_another_log_level_is_named_with_its_variable(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_LOG_LEVEL", "loud")
    assert_complains(cli("users", "list"), "AW_LOG_LEVEL", "debug")


def test_every_command_has_help(cli: Cli) -> None:
    for group in ((), ("users",), ("keys",), ("specs",), ("nodes",), ("settings",)):
        response = cli(*group, "--help")
        assert response.status == 0
        assert "Usage" in response.out
