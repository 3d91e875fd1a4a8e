"""`agent-workspace migrate`, as an operator uses it."""

import os
import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from shared.crypto import new_secret_key
from shared.db.database import Database
from shared.models import SandboxSpec
from shared.nodes import registry as node_registry
from shared.sandboxes import specs
from tests.services.directories import REPOSITORY
from tests.services.interpreters import Interpreters
from tests.shared.cli.results import Cli, assert_complains, mode, owner, vault_of

# Two commands, each of which exits.
PREPARE = """
from shared.cli.app import main
for command in ("migrate", "bootstrap"):
    try:
        main([command])
    except SystemExit as end:
        if end.code:
            raise
"""


@pytest.mark.usefixtures("migrated")
def test_migrate_creates_the_installation(var: Path, database: Database) -> None:
    assert (mode(var), mode(var / "secret.key")) == (0o700, 0o600)
    vault_of(var)
    with database.reading() as session:
        (spec,) = specs.list_specs(session)
        assert (spec.id, spec.command, spec.env) == ("agent-workspace/sandbox:1.58.2", None, {})
    assert [path.name for path in var.iterdir() if path.name.startswith(".")] == []


def test_migrate_creates_a_missing_metrics_key(migrated: Cli, var: Path) -> None:
    file = var / "metrics.key"
    key = file.read_text()
    assert (mode(file), len(key.strip()) > 40) == (0o600, True)
    assert migrated("migrate").status == 0
    assert file.read_text() == key
    file.unlink()  # as in an installation that is older than this file
    response = migrated("migrate")
    assert response.status == 0
    assert file.read_text() not in (key, "", response.out, response.err)


@pytest.mark.parametrize(("folder", "expected"), [((0, 0o750), 0o640), ((0, 0o700), 0o600), ((7, 0o770), 0o600)])
def test_keys_that_root_writes_are_readable_for_the_service(
    cli: Cli, var: Path, monkeypatch: pytest.MonkeyPatch, folder: tuple[int, int], expected: int
) -> None:
    """With `make run`, the group of root's folder may read them; under systemd, the API's user owns the folder."""
    var.mkdir()
    owners: list[tuple[int, int]] = []
    status = os.stat_result((stat.S_IFDIR | folder[1], 0, 0, 2, folder[0], 8, 0, 0, 0, 0))
    really = Path.stat
    monkeypatch.setattr(Path, "stat", lambda path, **options: status if path == var else really(path, **options))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", lambda _file, user, group: owners.append((user, group)))
    assert cli("migrate").status == 0
    assert owners == [(folder[0], 8)] * 2
    assert {mode(var / name) for name in ("secret.key", "metrics.key")} == {expected}


def test_key_behind_a_link_is_not_given_away(
    cli: Cli, var: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    var.mkdir()
    (tmp_path / "other").write_text("a file of root's")
    (tmp_path / "other").chmod(0o604)
    (var / "metrics.key").symlink_to(tmp_path / "other")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", lambda *_: None)
    assert cli("migrate").status == 0
    assert mode(tmp_path / "other") == 0o604


def test_second_migrate_is_a_no_op(migrated: Cli, var: Path, database: Database) -> None:
    key = (var / "secret.key").read_text()
    with database.transaction() as session:
        installation = node_registry.installation_id(session)
        specs.remove_spec(session, "agent-workspace/sandbox:1.58.2")
        specs.add_spec(session, SandboxSpec(id="mine", position=0))
    assert migrated("migrate").status == 0
    assert (var / "secret.key").read_text() == key
    with database.transaction() as session:
        assert node_registry.installation_id(session) == installation
        assert [spec.id for spec in specs.list_specs(session)] == ["mine"]


def test_migrate_seeds_the_configured_image(cli: Cli, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_DEFAULT_SANDBOX_IMAGE", "registry.test/agent:1")
    assert cli("migrate").status == 0
    with database.reading() as session:
        assert specs.get_spec(session, None).id == "registry.test/agent:1"


def test_migrate_creates_no_key_if_one_is_configured(cli: Cli, var: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_SECRET_KEYS", new_secret_key())
    assert cli("migrate").status == 0
    assert not (var / "secret.key").exists()


def test_migrate_rejects_a_malformed_key_without_showing_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_SECRET_KEYS", "hush-hush")
    response = cli("migrate")
    assert_complains(response, "AW_SECRET_KEYS")
    assert "hush" not in response.err


def test_migrate_creates_no_new_key_while_the_old_one_is_needed(migrated: Cli, var: Path) -> None:
    migrated("users", "create", "bob")
    (var / "secret.key").unlink()
    assert_complains(migrated("migrate"), "secret.key", "AW_SECRET_KEYS")
    assert not (var / "secret.key").exists()


def test_processes_may_prepare_a_new_installation_concurrently(interpreters: Interpreters, tmp_path: Path) -> None:
    environment = os.environ | {"AW_VAR_DIR": str(tmp_path / "var"), "PYTHONPATH": str(REPOSITORY)}
    logs, started = [tmp_path / "log-1", tmp_path / "log-2"], []
    for log in logs:
        with log.open("w") as output:
            started.append(interpreters.start("-c", PREPARE, cwd=tmp_path, env=environment, stdout=output))
    statuses = [process.wait(120) for process in started]
    outputs = [log.read_text() for log in logs]
    assert statuses == [0, 0], outputs
    assert sum("created user admin" in output for output in outputs) == 1
    assert mode(tmp_path / "var" / "agent-workspace.db") == 0o600
    database = Database(f"sqlite:///{tmp_path}/var/agent-workspace.db")
    assert owner(database, tmp_path / "var", (tmp_path / "var" / "admin.key").read_text().strip()) == "admin"
    database.close()


@pytest.fixture
def unreachable(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line of an installation whose PostgreSQL is not running; the URL has a password."""
    monkeypatch.setenv("AW_DATABASE_URL", "postgresql://workspace:hush@127.0.0.1:1/workspace")
    return cli


def test_migrate_without_a_database_fails_at_once(unreachable: Cli) -> None:
    response = unreachable("migrate")
    assert_complains(response, "postgresql://127.0.0.1:1/workspace is not ready: ", "refused", "explain")
    assert "hush" not in response.err


def test_migrate_waits_for_a_database_if_requested(unreachable: Cli) -> None:
    with capture_logs() as logs:
        response = unreachable("migrate", "--wait", "0.1")
    assert (response.status, [line["event"] for line in logs]) == (1, ["waiting_for_database"])
    assert "is not ready after 0.1 s: " in response.err
    assert "hush" not in f"{logs}{response}"
