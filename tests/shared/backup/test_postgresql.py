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
from shared.errors import Conflict, Invalid
from shared.settings import Settings
from tests.services.postgres import Postgres

PASSPHRASE = "correct horse battery"


@pytest.mark.parametrize(
    ("url", "secrets", "service"),
    [
        ("u:hush@store.test:1/d?a=b", "", ""),
        ("u@store.test:1/d?a=b&password=hush", "", ""),
        ("u:hush@store.test:1/d?a=b&sslpassword=hush%3D1", "sslpassword=hush=1\n", "&service=agent-workspace"),
    ],
)
def test_password_is_in_no_argument(
    url: str, secrets: str, service: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every user of the machine can read the arguments of a process."""
    called: list[tuple[list[str], dict[str, str], str]] = []

    def run(command: list[str], *, env: dict[str, str], **_: Any) -> Any:
        called.append((command, env, Path(env["PGSERVICEFILE"]).read_text()))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(postgresql, "_server_version", lambda _url: 15)
    monkeypatch.setattr(postgresql, "_find", lambda name, _version: Path(name))
    monkeypatch.setattr(subprocess, "run", run)
    postgresql.dump(f"postgresql+psycopg://{url}", tmp_path / "store.dump")
    [(command, environment, file)] = called
    assert (environment["PGPASSWORD"], "hush" in " ".join(command)) == ("hush", False)
    assert f"--dbname=postgresql://u@store.test:1/d?a=b{service}" in command
    assert file == f"[agent-workspace]\n{secrets}"


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


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_refusal_of_a_restore_shows_no_secret(settings: Settings, tmp_path: Path) -> None:
    store.back_up(settings, tmp_path / "backup", None)
    url = make_url(settings.database).update_query_dict({"sslpassword": "hush"})
    own = Settings(var_dir=settings.var_dir, database_url=url.render_as_string(hide_password=False))
    with pytest.raises(Conflict, match="is not empty") as refusal:
        store.restore(own, tmp_path / "backup", None)
    assert "hush" not in str(refusal.value)


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
