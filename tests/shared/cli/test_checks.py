"""`status`, `doctor`, `explain` and `db check`."""

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from shared.cli.checks import installation_checks
from shared.cli.checks.finding import Finding
from shared.clock import now
from shared.db.database import Database
from shared.reasons import explanations
from shared.states import NodeStatus, Reason, Status
from tests.factories import make_node, make_sandbox, make_user
from tests.shared.cli.results import Cli, Result


def test_status_shows_nodes_sandboxes_and_waiting_work(migrated: Cli, database: Database) -> None:
    user = make_user(database, "bob")
    make_node(database, "a", detail="silent")
    for status in (Status.RUNNING, Status.ERROR, Status.DELETED):
        make_sandbox(database, user, status=status, node_id="a")
    make_sandbox(database, user, node_id="a", owner_id=None)  # a warm one, beyond the node's capacity
    make_sandbox(database, user, status=Status.STARTING, node_id="a", due_at=now() - timedelta(seconds=90))
    shown = json.loads(migrated("status", "--json").out)
    assert shown["sandboxes"] == {"ERROR": 1, "RUNNING": 2, "STARTING": 1}
    assert (shown["nodes"][0]["used"], shown["schema"]["found"]) == (3, shown["schema"]["needed"])
    assert shown["waiting"]["sandboxes"]["due"] == 1
    assert 90 <= shown["waiting"]["sandboxes"]["oldest_due_seconds"] < 200
    response = migrated("status")
    assert "a: READY, 3 of 100 slots" in response.out
    assert "1 overdue" in response.out


def test_status_shows_forgotten_nodes_while_they_have_sandboxes(migrated: Cli, database: Database) -> None:
    for node_id in ("a", "b"):
        make_node(database, node_id, status=NodeStatus.LOST, forgotten_at=now())
    make_sandbox(database, make_user(database, "bob"), status=Status.PAUSED, node_id="a")
    nodes = json.loads(migrated("status", "--json").out)["nodes"]
    assert [(node["id"], node["status"], node["used"]) for node in nodes] == [("a", "FORGOTTEN", 1)]
    response = migrated("status")
    assert "a: FORGOTTEN, 1 of 100 slots" in response.out
    assert "b: " not in response.out


def test_database_of_another_version_is_reported(migrated: Cli, database: Database) -> None:
    assert migrated("db", "check").status == 0
    with database.transaction() as session:
        session.connection().execute(text("UPDATE alembic_version SET version_num = '0001'"))
    response = migrated("db", "check")
    assert (response.status, "db migrate" in response.err) == (1, True)
    [schema] = [row for row in json.loads(examine(migrated).out) if row["check"] == "schema"]
    assert (schema["result"], "db migrate" in schema["fix"]) == ("wrong", True)


def test_database_of_a_newer_version_is_not_wrong_after_a_rollback(migrated: Cli, database: Database) -> None:
    """No migration reverts the newer schema, and this version works with it."""
    with database.transaction() as session:
        session.connection().execute(text("UPDATE alembic_version SET version_num = '9999'"))
    response = migrated("db", "check")
    assert (response.status, "db migrate" in response.err, "newer version" in response.err) == (0, False, True)
    found = {row["check"]: row for row in json.loads(examine(migrated).out)}
    assert (found["schema"]["result"], found["schema"]["found"]) == ("ok", "9999, of a newer version")
    assert "nodes" in found
    assert "schema 9999, of a newer version" in migrated("status").out


def test_doctor_reports_each_problem_and_its_fix(
    migrated: Cli, database: Database, var: Path, monkeypatch: pytest.MonkeyPatch, taken_port: int
) -> None:
    make_node(database, "a", heartbeat_at=now() - timedelta(hours=1))
    (var / "secret.key").chmod(0o644)
    monkeypatch.setenv("AW_PORT", str(taken_port))
    monkeypatch.setenv("AW_CLIENT_PORT", "0")
    response = examine(migrated)
    assert response.status == 1
    found = {row["check"]: row for row in json.loads(response.out)}
    wrong = {name for name, row in found.items() if row["result"] == "wrong"}
    assert wrong == {"secret key", "broker", "port of the API", "node a"}
    assert all(found[name]["fix"] for name in wrong)
    assert found["database"]["result"] == found["clock"]["result"] == "ok"


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("AW_QUOTA_RUNING=3\n", "AW_QUOTA_RUNING"),
        ("export AW_CONCURENCY=3\nAW_PORT=3100\n", "AW_CONCURENCY"),
        ("AW_FLOWER_HOSTS=flower.example\n", "AW_FLOWER_HOSTS"),  # of the environment only
        ("AW_QUOTA_RUNNING=3\naw_node_capacity=9\nAW_LISTS_MEMORY_MB=8\nOTEL_TRACES_SAMPLER=always_on\n", ""),
        ("", ""),
    ],
)
def test_doctor_names_settings_that_no_process_reads(migrated: Cli, var: Path, text: str, unknown: str) -> None:
    (var / "env").write_text(text)
    found = {row["check"]: row for row in json.loads(examine(migrated).out)}["settings"]
    assert found["result"] == ("wrong" if unknown else "ok")
    assert not unknown or f"no process reads {unknown} from var/env" in found["found"]


@pytest.mark.parametrize("line", ["AW_PORT: 3100", "AW_PORT='3100", "AW_PORT"])
def test_doctor_names_lines_of_the_settings_that_set_nothing(migrated: Cli, var: Path, line: str) -> None:
    (var / "env").write_text(f"AW_LOG_LEVEL=DEBUG\n\n{line}\nAW_LOG_FORMAT=json\n")
    found = {row["check"]: row for row in json.loads(examine(migrated).out)}["settings"]
    assert (found["result"], found["found"]) == ("wrong", "line 3 of var/env sets nothing")


def test_doctor_examines_the_rest_if_the_secret_key_is_not_text(migrated: Cli, var: Path) -> None:
    (var / "secret.key").write_bytes(b"\xff\xfe")
    found = {row["check"]: row for row in json.loads(examine(migrated).out)}
    assert (found["secret key"]["result"], found["schema"]["result"]) == ("wrong", "ok")


def test_doctor_examines_the_rest_if_the_secret_key_cannot_be_reached(
    migrated: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's var directory cannot be entered; root, who runs tests, cannot enter one with too long a name."""
    monkeypatch.setenv("AW_VAR_DIR", str(tmp_path / ("v" * 300)))
    found = {row["check"]: row for row in json.loads(examine(migrated).out)}
    assert "cannot be read: File name too long" in found["secret key"]["found"]
    assert found["schema"]["result"] == "ok"


class BytewiseSocket(socket.socket):
    """A socket that receives one byte at a time."""

    def recv(self, _size: int, flags: int = 0) -> bytes:
        return super().recv(1, flags)

    def recv_into(self, buffer: Any, _size: int = 0, flags: int = 0) -> int:
        return super().recv_into(buffer, 1, flags)


@pytest.mark.parametrize(
    ("response", "result"),
    [
        (b"HTTP/1.1 200 OK\r\n", "the service responds"),
        (b"HTTP/1.1 503 Service Unavailable\r\n", "overloaded"),
        (b"HTTP/1.1 404 Not Found\r\n", "another program"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "another program"),
        (b"", "does not respond"),
    ],
)
def test_doctor_distinguishes_the_service_from_other_programs(
    migrated: Cli, monkeypatch: pytest.MonkeyPatch, response: bytes, result: str
) -> None:
    monkeypatch.setattr(installation_checks, "SECONDS", 10.0 if response else 0.1)
    monkeypatch.setattr(socket, "socket", BytewiseSocket)
    monkeypatch.setenv("AW_CLIENT_PORT", "0")
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        monkeypatch.setenv("AW_PORT", str(server.getsockname()[1]))
        served = pool.submit(respond, server, response)
        found = {row["check"]: row for row in json.loads(examine(migrated).out)}["port of the API"]
        served.result(10)
    assert result in found["found"]
    assert (found["result"] == "ok") == (b"200" in response)


def test_doctor_reports_a_missing_database(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_DATABASE_URL", "postgres://u:hush@127.0.0.1:1/d")
    response = examine(cli)
    assert (response.status, "hush" in response.out + response.err) == (1, False)
    assert "AW_DATABASE_URL" in response.out


@pytest.mark.parametrize(
    ("version", "major"),
    [("17beta1", 17), ("18devel", 18), ("15.19 (Debian 15.19-0+deb12u1)", 15), ("7.2.4", 7), ("unstable", 0)],
)
def test_versions_of_servers_need_not_be_numbers(version: str, major: int) -> None:
    assert installation_checks.major(version) == major


def test_doctor_examines_the_machine(migrated: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.machine.check_machine", lambda: iter([Finding("engine", found="version 1")]))
    assert migrated("doctor", "--only", "engine").status == 0
    assert migrated("doctor", "--only", "moon").status == 2


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_explained(cli: Cli, reason: Reason) -> None:
    shown = json.loads(cli("explain", reason, "--json").out)
    assert all(shown[part] for part in ("meaning", "cause", "check", "fix", "data"))


def test_reasons_are_listed_and_unknown_ones_refused(cli: Cli) -> None:
    assert cli("explain", "-q").out.split() == list(explanations())
    assert "oom_killed" in cli("explain", "oom_killed").out
    assert cli("explain", "moon").status == 3


@pytest.fixture
def taken_port() -> Iterator[int]:
    """The port of another program, which accepts a connection and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        port = server.getsockname()[1]

        def hang_up() -> None:
            server.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        yield port


def respond(server: socket.socket, response: bytes) -> None:
    """Send this as the response to one request, and wait for the client to leave."""
    connection = server.accept()[0]
    with connection:
        connection.sendall(response)
        while connection.recv(1):
            pass


def examine(cli: Cli) -> Result:
    return cli("doctor", "--only", "installation", "--json")
