"""`specs`: sandbox specs, their options and deadlines."""

import json

import pytest

from shared.clock import after
from shared.db.database import Database
from shared.models import Node
from shared.sandboxes import specs
from shared.states import NodeStatus
from tests import effort
from tests.factories import ApiUser, make_sandbox
from tests.rows import as_stored
from tests.shared.cli.results import Cli, assert_complains, rows


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


def test_programs_get_the_stored_values_of_a_spec(migrated: Cli) -> None:
    options = ["--disk", "20G", "--freeze-after", "30m", "--warm", "2", "--port", "VSCODE=8001", "--env", "A=hush"]
    assert migrated("specs", "add", "own:1", *options).status == 0
    response = migrated("specs", "show", "own:1", "--json")
    shown = json.loads(response.out)
    assert json.loads(migrated("specs", "list", "--json").out)[-1] == shown
    assert (shown["image"], shown["command"], shown["runtime"], shown["disk_bytes"]) == (
        "own:1",
        None,
        None,
        20 * 1024**3,
    )
    assert (shown["freeze_after_seconds"], shown["stop_after_seconds"]) == (1800, None)
    assert shown["warm"] == {"ready": 0, "booting": 0, "target": 2, "max": 3, "detail": None}
    assert (shown["ports"], shown["capabilities"]) == ({"AGENT_SERVER": 8000, "VSCODE": 8001}, [])
    assert (shown["environment"], shown["egress"], "hush" in response.out) == (["A"], ["open"], False)


def test_former_spec_becomes_the_default_again(migrated: Cli, database: Database) -> None:
    """An operator does this after a new image that does not start."""
    first = "agent-workspace/sandbox:1.58.2"
    assert migrated("specs", "add", "own:1", "--default").status == 0
    for _ in range(2):
        assert migrated("specs", "set", first, "--default").status == 0
        assert [row[0] for row in rows(migrated("specs", "list"))] == [first, "own:1"]
    with database.reading() as session:
        assert specs.get_spec(session, first).revision == 1, "its warm sandboxes stay"
    assert_complains(migrated("specs", "set", "unknown", "--default"), "unknown", status=3)


def test_spec_without_options_has_the_image_s_defaults(migrated: Cli, database: Database) -> None:
    assert migrated("specs", "add", "own:1").status == 0
    with database.reading() as session:
        spec = specs.get_spec(session, "own:1")
        assert specs.get_spec(session, None).id != "own:1"
    assert (spec.command, spec.env, spec.runtime) == (None, {}, None)
    assert (spec.ports, spec.capabilities) == ({"AGENT_SERVER": 8000}, [])


def test_disk_and_runtime_of_a_spec_are_stored(migrated: Cli, database: Database) -> None:
    assert migrated("specs", "add", "own:1", "--disk", "20G").status == 0
    assert "20G" in migrated("specs", "list").out
    assert migrated("specs", "set", "own:1", "--disk", "0").status == 0
    with database.transaction() as session:
        assert specs.get_spec(session, "own:1").disk_bytes == 0
        session.add(Node(id="n", status=NodeStatus.READY, capacity=1, runtimes=["runc"]))
    for size in ("20", "8M", "17T", "x", "-1G"):
        refused = migrated("specs", "set", "own:1", f"--disk={size}")
        assert (refused.status, "use a size like 500M" in refused.err) == (2, True)
    assert_complains(migrated("specs", "add", "own:2", "--runtime", "runsc"), "has the runtime 'runsc'")
    assert migrated("specs", "add", "own:2", "--runtime", "runc").status == 0


def test_ports_and_capabilities_of_a_spec_are_stored(migrated: Cli, database: Database) -> None:
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
        ("--cpus", "inf"),
        ("--memory-mb", "99999999999999"),
        ("--pids", "99999999999999"),
    ],
)
def test_invalid_options_of_a_spec_are_rejected(migrated: Cli, database: Database, option: tuple[str, str]) -> None:
    response = migrated("specs", "add", "own:1", *option)
    assert response.status == 2
    assert option[0] in response.err
    with database.reading() as session:
        assert len(specs.list_specs(session)) == 1


@pytest.mark.parametrize(
    ("option", "text", "reason"),
    [
        ("--command", "serve 'a b", "No closing quotation"),
        ("--command", " ", "a program and its arguments"),
        ("--command", "serve \udcff", "a program and its arguments"),
        ("--env", "A=\udcff", "KEY=VALUE"),
        ("--port", "vs-code=8001", "capital letters"),
        ("--port", "VSCODE=65536", "from 1 to 65535"),
        ("--port", "VSCODE", "NAME=NUMBER"),
    ],
)
def test_error_says_which_option_is_wrong_and_why(migrated: Cli, option: str, text: str, reason: str) -> None:
    response = migrated("specs", "add", "own:1", option, text)
    assert response.status == 2
    shown = " ".join(response.err.replace("│", "").split())
    assert (option in shown, reason in shown) == (True, True), response.err


@pytest.mark.parametrize("folder", ["project", "/work\udcff"])
def test_unusable_working_directory_is_rejected(migrated: Cli, folder: str) -> None:
    assert_complains(migrated("specs", "add", "own:1", "--working-dir", folder), "an absolute path")


def test_deadlines_of_a_spec_are_stored(migrated: Cli, database: Database) -> None:
    assert migrated("specs", "add", "own:1", "--freeze-after", "30m", "--max-age", "7d").status == 0
    assert rows(migrated("specs", "list"))[-1][-4:] == ["30m", "never", "never", "7d"]
    assert migrated("specs", "set", "own:1", "--freeze-after", "never", "--stop-after", "90").status == 0
    assert rows(migrated("specs", "list"))[-1][-4:] == ["never", "90s", "never", "7d"]
    assert_complains(migrated("specs", "set", "unknown", "--max-age", "1d"), "unknown", status=3)
    with database.reading() as session:
        spec = specs.get_spec(session, "own:1")
    assert (spec.freeze_after_seconds, spec.stop_after_seconds, spec.max_age_seconds) == (None, 90, 604_800)


def test_waking_is_on_unless_a_spec_disables_it(migrated: Cli, database: Database) -> None:
    for command, wakes in (("add", "yes"), ("set --no-wake", "no"), ("set --pids 64", "no"), ("set --wake", "yes")):
        verb, *options = command.split()
        assert migrated("specs", verb, "own:1", *options).status == 0
        assert rows(migrated("specs", "list"))[-1][-6] == wakes
    assert migrated("specs", "add", "own:2", "--no-wake").status == 0
    with database.reading() as session:
        first, second = specs.get_spec(session, "own:1"), specs.get_spec(session, "own:2")
    # Only one of the changes affects containers; the others leave warm sandboxes usable.
    assert (first.wake_on_traffic, first.revision, second.wake_on_traffic) == (True, 2, False)


@pytest.mark.parametrize(
    ("text", "option"),
    effort.covering(
        ["0", "soon", "1w", "11y"],
        ["--freeze-after", "--stop-after", "--delete-after", "--max-age"],
    ),
)
def test_invalid_deadlines_are_rejected(migrated: Cli, option: str, text: str) -> None:
    for command in (("add", "own:1"), ("set", "agent-workspace/sandbox:1.58.2")):
        response = migrated("specs", *command, option, text)
        assert response.status == 2
        assert option in response.err
        assert "90s, 30m, 12h or 7d" in " ".join(response.err.split())
    assert rows(migrated("specs", "list"))[-1][-4:] == ["never"] * 4
    assert migrated("specs", "set", "agent-workspace/sandbox:1.58.2").status == 2


def test_deadlines_that_delete_immediately_need_confirmation(migrated: Cli, database: Database, user: ApiUser) -> None:
    old = make_sandbox(database, user, spec_id="used", created_at=after(-7200))
    refused = migrated("specs", "set", "used", "--max-age", "1h")
    assert (refused.status, "1 sandbox(es)" in refused.err, "--yes" in refused.err) == (2, True, True)
    assert as_stored(database, old).deadline_at is None
    assert migrated("specs", "set", "used", "--max-age", "3h").status == 0
    assert as_stored(database, old).deadline_does == "expire"
    assert migrated("specs", "set", "used", "--max-age", "1h", "--yes").status == 0
    expires_at = as_stored(database, old).expires_at
    assert expires_at is not None
    assert expires_at < after(0)


def test_invalid_specs_are_rejected(migrated: Cli, database: Database, user: ApiUser) -> None:
    make_sandbox(database, user, spec_id="used")
    migrated("specs", "add", "own:1")
    assert_complains(migrated("specs", "add", "own:1"), "own:1")
    assert_complains(migrated("specs", "add", "a b"), "image")
    assert_complains(migrated("specs", "remove", "unknown"), "unknown", status=3)
    assert_complains(migrated("specs", "remove", "used"), "used")
    assert migrated("specs", "add", "own:2", "--env", "novalue").status == 2
