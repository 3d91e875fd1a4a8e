"""The calls of PostgreSQL's programs."""

import subprocess
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from shared.backup import postgresql, store
from shared.cli.backup.operations import BackupOperations
from shared.cli.local.installation import LocalInstallation
from shared.errors import Invalid
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


@pytest.mark.parametrize(
    ("server", "installed", "used"),
    [(16, [17, 18], []), (15, [14, 15, 16, 17], [15, 16]), (17, [16, 17, 18], [17, 18]), (17, [16], [])],
)
def test_programs_are_those_whose_dumps_the_server_can_restore(
    server: int, installed: list[int], used: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those of PostgreSQL 17 and newer set `transaction_timeout`, which is an error on servers before 17."""
    called: list[int] = []

    def run(command: list[str], **_: Any) -> Any:
        called.append(int(command[0]))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(postgresql, "_server_version", lambda _url: server)
    monkeypatch.setattr(postgresql, "_candidates", lambda _name: [Path(str(version)) for version in installed])
    monkeypatch.setattr(postgresql, "_version", lambda program: int(program.name))
    monkeypatch.setattr("shared.db.unfinished_restore.mark", lambda *_: None)
    monkeypatch.setattr(subprocess, "run", run)
    url = "postgresql+psycopg://u@store.test/d"
    for act in (partial(postgresql.dump, url, tmp_path / "store.dump"), partial(postgresql.load, tmp_path, url, "")):
        with nullcontext() if used else pytest.raises(Invalid, match=f"install postgresql-client-{server}"):
            act()
    assert called == used
