"""The calls of PostgreSQL's programs."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from shared.backup import postgresql, store
from shared.cli.backup.operations import BackupOperations
from shared.cli.local.installation import LocalInstallation
from shared.settings import Settings
from tests.services.postgres import Postgres

PASSPHRASE = "correct horse battery"


@pytest.mark.parametrize(
    "url", ["postgresql+psycopg://u:hush@store.test:1/d?a=b", "postgresql+psycopg://u@store.test:1/d?a=b&password=hush"]
)
def test_password_is_in_no_argument(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every user of the machine can read the arguments of a process."""
    called: list[tuple[list[str], dict[str, str]]] = []

    def run(command: list[str], *, env: dict[str, str], **_: Any) -> Any:
        called.append((command, env))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(postgresql, "_server_version", lambda _url: 15)
    monkeypatch.setattr(postgresql, "_find", lambda name, _version: Path(name))
    monkeypatch.setattr(subprocess, "run", run)
    postgresql.dump(url, tmp_path / "store.dump")
    [(command, environment)] = called
    assert (environment["PGPASSWORD"], "hush" in " ".join(command)) == ("hush", False)
    assert "--dbname=postgresql://u@store.test:1/d?a=b" in command


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_restore_needs_no_rights_over_extensions_that_are_there(
    settings: Settings, clean: Settings, postgres_server: Postgres, tmp_path: Path
) -> None:
    """On many servers, only an administrator may create extensions, and owns them."""
    store.back_up(settings, tmp_path / "backup", PASSPHRASE)
    url = make_url(clean.database)
    with postgres_server.connect(str(url.database)) as administrator:
        for statement in ("CREATE EXTENSION pg_trgm", "CREATE EXTENSION btree_gin", "CREATE ROLE operator LOGIN"):
            administrator.execute(statement)
        administrator.execute("GRANT CREATE ON SCHEMA public TO operator")
    own = Settings(var_dir=clean.var_dir, database_url=url.set(username="operator").render_as_string())
    try:
        BackupOperations(own).restore(tmp_path / "backup", PASSPHRASE)
        assert LocalInstallation(own).schema().is_current
    finally:
        with postgres_server.connect(str(url.database)) as administrator:
            administrator.execute("DROP OWNED BY operator CASCADE")
            administrator.execute("DROP ROLE operator")
