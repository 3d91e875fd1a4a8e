"""`nodes`: list, cordon, drain, forget, and removal of unknown containers."""

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlmodel import select

from shared.clock import now
from shared.db.database import Database
from shared.models import Node, NodeSpecBackoff, Sandbox
from shared.sandboxes import desired_state, quarantine
from shared.states import Desired, NodeStatus, PauseKind, Reason, Status
from tests.factories import make_node, make_sandbox, make_spec, make_user
from tests.shared.cli.results import Cli, assert_complains, rows


def test_nodes_are_listed(migrated: Cli, database: Database) -> None:
    assert rows(migrated("nodes", "list")) == []
    user = make_user(database, "bob")
    for status in (Status.PAUSED, Status.ERROR, Status.DELETED):
        make_sandbox(database, user, status=status, node_id="b")
    make_node(database, "a", capacity=3, heartbeat_at=now() - timedelta(hours=1), detail="silent")
    first, second = rows(migrated("nodes", "list"))
    assert first[:4] == ["a", "READY", "0", "3"]
    assert first[5] in {f"{3600 + seconds} s ago" for seconds in range(60)}
    assert first[6] == "silent"
    assert second[:4] == ["b", "READY", "2", "100"]


def test_programs_get_times_of_nodes_in_iso_8601(migrated: Cli, database: Database, unknown: list[str]) -> None:
    at = now() - timedelta(hours=1)
    make_node(database, "b", heartbeat_at=at)
    found = json.loads(migrated("nodes", "list", "--json").out)
    assert datetime.fromisoformat(found[1]["heartbeat_at"]) == at
    assert found[1].keys() == {"id", "status", "used", "capacity", "disks", "heartbeat_at", "detail"}
    listed = json.loads(migrated("nodes", "unknown", "--json").out)
    assert [row["name"] for row in listed] == [*unknown, "aw-b"]
    assert all(datetime.fromisoformat(row["first_seen"]) > at for row in listed)


def test_spec_backoffs_of_a_node_are_listed(migrated: Cli, database: Database) -> None:
    make_node(database, "a", detail="slow")
    make_spec(database, "own:1")
    with database.transaction() as session:
        until = now() + timedelta(minutes=1)
        session.add(NodeSpecBackoff(node_id="a", spec_id="own:1", failures=3, backoff_until=until, detail="disk full"))
    (listed,) = rows(migrated("nodes", "list"))
    assert listed[6].startswith("slow; no new own:1 until 20")
    assert listed[6].endswith("3 failed: disk full")
    assert migrated("nodes", "uncordon", "a").status == 0
    assert rows(migrated("nodes", "list"))[0][6] == "slow"


def test_node_is_cordoned_and_uncordoned(migrated: Cli, database: Database) -> None:
    make_node(database, "a")
    for command, status in (
        ("cordon", "CORDONED"),
        ("cordon", "CORDONED"),
        ("uncordon", "READY"),
        ("uncordon", "READY"),
    ):
        response = migrated("nodes", command, "a")
        assert (response.status, response.err) == (0, "")
        assert [row[:2] for row in rows(migrated("nodes", "list"))] == [["a", status]]


@pytest.mark.parametrize(
    ("columns", "obstacle"),
    [
        ({}, None),
        ({"detail": "the engine does not respond: timeout"}, "the engine does not respond: timeout"),
        ({"closed_reason": "the firewall rules are not written"}, "the firewall rules are not written"),
        ({"heartbeat_at": now() - timedelta(hours=1)}, "no heartbeat for "),
    ],
)
def test_uncordoned_node_takes_sandboxes_only_if_nothing_else_prevents_it(
    migrated: Cli, database: Database, columns: dict[str, Any], obstacle: str | None
) -> None:
    make_node(database, "a", **{"status": NodeStatus.CORDONED, "heartbeat_at": now()} | columns)
    answer = migrated("nodes", "uncordon", "a")
    assert (answer.status, "a takes new sandboxes" in answer.out) == (0, obstacle is None)
    assert (obstacle or "") in answer.out


def test_lost_node_is_forgotten(migrated: Cli, database: Database) -> None:
    make_node(database, "a", status=NodeStatus.LOST, detail="away", heartbeat_at=now() - timedelta(hours=1))
    user = make_user(database, "bob")
    kept = make_sandbox(database, user, status=Status.PAUSED, node_id="a")
    gone = make_sandbox(database, user, status=Status.DELETING, node_id="a")
    make_sandbox(database, user, status=Status.DELETED, node_id="a")
    preview = migrated("nodes", "forget", "a")
    assert "--yes" in preview.err
    assert sorted(rows(preview, status=2)) == sorted(
        [[kept.id, "bob", "PAUSED", "ERROR, its files lost"], [gone.id, "bob", "DELETING", "DELETED"]]
    )
    assert rows(migrated("nodes", "list"))[0][:3] == ["a", "LOST", "2"]
    assert "2 sandboxes" in migrated("nodes", "forget", "a", "--yes").out
    assert rows(migrated("nodes", "list"))[0][:3] == ["a", "FORGOTTEN", "2"]


def test_removed_node_without_sandboxes_is_not_listed(migrated: Cli, database: Database) -> None:
    make_node(database, "a", status=NodeStatus.LOST, detail="away", heartbeat_at=now() - timedelta(hours=1))
    assert migrated("nodes", "forget", "a", "--yes").status == 0
    assert rows(migrated("nodes", "list")) == []


@pytest.mark.parametrize("options", [(), ("--yes",)])
def test_live_node_is_not_forgotten(migrated: Cli, database: Database, options: tuple[str, ...]) -> None:
    make_node(database, "a")
    assert_complains(migrated("nodes", "forget", "a", *options), "a", "not lost")


@pytest.fixture
def unknown(database: Database) -> list[str]:
    """Containers that are not in the database: many at one node, one at another."""
    make_node(database, "a")
    names = [f"aw-{number}" for number in range(quarantine.MAX_UNCONFIRMED + 1)]
    with database.transaction() as session:
        quarantine.keep(session, "a", names)
        quarantine.keep(session, "b", ["aw-b"])
    return names


def test_unknown_containers_are_listed(migrated: Cli, unknown: list[str]) -> None:
    listed = rows(migrated("nodes", "unknown"))
    assert [line[:2] for line in listed] == [*(["a", name] for name in unknown), ["b", "aw-b"]]
    assert {line[3] for line in listed[:-1]} == {"only by `nodes remove-unknown`: too many"}
    assert listed[-1][3] == "after its quarantine"
    assert f"{len(unknown)} unknown container(s)" in rows(migrated("nodes", "list"))[0][6]


def test_unknown_containers_of_a_forgotten_node_are_not_listed(
    migrated: Cli, database: Database, unknown: list[str]
) -> None:
    make_node(database, "b", status=NodeStatus.LOST, detail="away", heartbeat_at=now() - timedelta(hours=1))
    make_sandbox(database, make_user(database, "bob"), status=Status.PAUSED, node_id="b")
    assert migrated("nodes", "forget", "b", "--yes").status == 0
    assert [line[:2] for line in rows(migrated("nodes", "unknown"))] == [["a", name] for name in unknown]
    assert [line[6] for line in rows(migrated("nodes", "list")) if line[0] == "b"] == ["away"]


@pytest.mark.parametrize("chosen", [[], ["aw-1", "aw-2"]])
def test_unknown_containers_are_removed_on_an_operator_s_approval(
    migrated: Cli, database: Database, unknown: list[str], chosen: list[str]
) -> None:
    expected = chosen or unknown
    preview = migrated("nodes", "remove-unknown", "a", *chosen)
    assert "--yes" in preview.err
    assert [line[0] for line in rows(preview, status=2)] == expected
    assert approved(database) == []
    assert f"removes {len(expected)} unknown" in migrated("nodes", "remove-unknown", "a", *chosen, "--yes").out
    assert approved(database) == expected


@pytest.mark.usefixtures("unknown")
@pytest.mark.parametrize(("node", "minutes", "when"), [("a", 0, "now"), ("b", 5, "as soon as it runs again")])
def test_worker_that_is_not_running_removes_unknown_containers_later(
    migrated: Cli, database: Database, node: str, minutes: int, when: str
) -> None:
    make_node(database, "b", detail="away", heartbeat_at=now() - timedelta(minutes=minutes))
    assert f"container(s) {when}, with" in migrated("nodes", "remove-unknown", node, "--yes").out


@pytest.mark.usefixtures("unknown")
def test_container_that_is_not_unknown_there_is_not_removed(migrated: Cli, database: Database) -> None:
    assert_complains(migrated("nodes", "remove-unknown", "a", "aw-1", "aw-b", "--yes"), "aw-b", status=3)
    assert approved(database) == []


def test_unknown_containers_of_no_node_are_not_removed(migrated: Cli) -> None:
    assert_complains(migrated("nodes", "remove-unknown", "typo", "--yes"), "no node with id 'typo'", status=3)


def approved(database: Database) -> list[str]:
    with database.reading() as session:
        return [row.name for row in quarantine.find(session) if row.approved_at is not None]


@pytest.fixture
def three_on_a(database: Database) -> list[str]:
    """Sandboxes on a node: one running, one paused with its memory, one stopped."""
    user = make_user(database, "bob")
    kinds: list[tuple[Status, PauseKind | None]] = [
        (Status.RUNNING, None),
        (Status.PAUSED, PauseKind.FROZEN),
        (Status.PAUSED, PauseKind.STOPPED),
    ]
    return [make_sandbox(database, user, status=s, pause_kind=k, node_id="a").id for s, k in kinds]


def stop_all(database: Database) -> None:
    """Stop the sandboxes, as the node's worker does."""
    with database.transaction() as session:
        for found in session.exec(select(Sandbox).where(Sandbox.desired == Desired.STOPPED)):
            found.status, found.pause_kind = Status.PAUSED, PauseKind.STOPPED
            found.observed_generation = found.generation


def desires(database: Database, ids: list[str]) -> list[str]:
    with database.reading() as session:
        return [session.get_one(Sandbox, sandbox_id).desired for sandbox_id in ids]


def test_draining_without_yes_is_a_preview_that_stops_a_script(
    migrated: Cli, database: Database, three_on_a: list[str]
) -> None:
    preview = migrated("nodes", "drain", "a")
    assert "--yes" in preview.err
    assert sorted(rows(preview, status=2)) == sorted(
        [[three_on_a[0], "bob", "RUNNING", "PAUSED, stopped"], [three_on_a[1], "bob", "PAUSED", "PAUSED, stopped"]]
    )
    assert desires(database, three_on_a) == [Desired.RUNNING, Desired.PAUSED, Desired.PAUSED]
    assert rows(migrated("nodes", "list"))[0][1] == "READY"


def test_node_is_drained(
    migrated: Cli, database: Database, three_on_a: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.cli.local.nodes.sleep", lambda _seconds: stop_all(database))
    response = migrated("nodes", "drain", "a", "--yes")
    assert response.status == 0
    assert "3 sandboxes" in response.out
    assert desires(database, three_on_a) == [Desired.STOPPED, Desired.STOPPED, Desired.PAUSED]
    assert rows(migrated("nodes", "list"))[0][1] == "CORDONED"
    assert migrated("nodes", "drain", "a", "--yes").status == 0


def test_drain_warns_that_no_worker_runs(
    migrated: Cli, database: Database, three_on_a: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with database.transaction() as session:
        session.get_one(Node, "a").heartbeat_at = now() - timedelta(hours=1)
    pauses = iter((False, True))
    monkeypatch.setattr("shared.cli.local.nodes.sleep", lambda _: stop_all(database) if next(pauses) else None)
    response = migrated("nodes", "drain", "a", "--yes")
    assert response.status == 0
    assert response.err.count("last heartbeat of a was 36") == 1
    assert set(desires(database, three_on_a[:2])) == {Desired.STOPPED}


def test_drain_reports_once_why_a_sandbox_is_not_stopped_yet(
    migrated: Cli, database: Database, three_on_a: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        with database.transaction() as session:
            found = session.get_one(Sandbox, three_on_a[0])
            found.attempt, found.reason, found.detail = 1, Reason.ENGINE_ERROR, "stop is retried: no such runtime"

    steps = iter((fail, fail, lambda: stop_all(database)))
    monkeypatch.setattr("shared.cli.local.nodes.sleep", lambda _: next(steps)())
    response = migrated("nodes", "drain", "a", "--yes")
    assert response.status == 0
    why = f"{three_on_a[0]} is not stopped yet: engine_error: stop is retried: no such runtime"
    assert response.err.count(why) == response.err.count("is not stopped yet") == 1


def test_draining_continues_after_an_interruption(
    migrated: Cli, database: Database, three_on_a: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shared.cli.local.nodes.sleep", interrupt)
    response = migrated("nodes", "drain", "a", "--yes")
    assert response.status == 130
    assert "stays cordoned" in response.err
    with database.reading() as session:
        generation = session.get_one(Sandbox, three_on_a[0]).generation
    monkeypatch.setattr("shared.cli.local.nodes.sleep", lambda _seconds: stop_all(database))
    assert migrated("nodes", "drain", "a", "--yes").status == 0
    with database.reading() as session:
        assert session.get_one(Sandbox, three_on_a[0]).generation == generation


def test_sandbox_resumed_while_its_node_is_drained_is_named(
    migrated: Cli, database: Database, three_on_a: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def resume_one(_seconds: float) -> None:
        stop_all(database)
        with database.transaction() as session:
            desired_state.set_desired(session, session.get_one(Sandbox, three_on_a[1]), Desired.RUNNING, due_at=now())

    monkeypatch.setattr("shared.cli.local.nodes.sleep", resume_one)
    response = migrated("nodes", "drain", "a", "--yes")
    assert response.status == 1
    assert response.err.strip().endswith(three_on_a[1])


@pytest.mark.parametrize("command", ["cordon", "uncordon", "forget", "drain"])
def test_unknown_node_is_rejected(migrated: Cli, command: str) -> None:
    assert_complains(migrated("nodes", command, "b"), "node", "b", status=3)
