"""What `make run` prints when its API is ready: the address, and whether this machine's node takes sandboxes."""

from datetime import timedelta
from typing import Any

import pytest

from deploy.service import print_address
from shared.clock import now
from shared.db.database import Database
from shared.settings import Settings
from shared.states import NodeStatus
from tests.factories import make_node

READY = "Agent Workspace is ready"
LATER = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _api_is_ready(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(print_address, "is_ready", lambda _url: True)
    monkeypatch.setattr(print_address, "NODE_SECONDS", 0.0)
    monkeypatch.setattr(print_address, "age_of", lambda _pid: 10.0)
    monkeypatch.setenv("AW_DATABASE_URL", settings.database)
    monkeypatch.setenv("AW_VAR_DIR", str(settings.var_dir))
    monkeypatch.setenv("AW_NODE", "here")


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({}, None),
        ({"closed_reason": "the firewall's rules are not written"}, "the firewall's rules are not written"),
        ({"status": NodeStatus.CORDONED}, "it is cordoned"),
        (
            {"status": NodeStatus.LOST, "detail": "the engine does not respond", "heartbeat_at": now() - LATER},
            "the engine does not respond",
        ),
        ({"heartbeat_at": now() - LATER}, "its worker has sent no heartbeat since the start"),
    ],
)
def test_banner_says_whether_the_node_takes_sandboxes(
    database: Database, capsys: pytest.CaptureFixture[str], columns: dict[str, Any], problem: str | None
) -> None:
    make_node(database, "here", **{"heartbeat_at": now()} | columns)
    make_node(database, "elsewhere", closed_reason="its disk is full")
    print_address.main(["worker"])
    shown = capsys.readouterr().out
    assert (READY in shown, "takes no new sandboxes" in shown) == (problem is None, problem is not None)
    assert (problem or "") in shown
    assert "disk is full" not in shown
    assert "/admin " in shown


def test_banner_without_a_node_in_the_database_or_without_a_database_has_the_address(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    print_address.main(["worker"])
    assert "its worker has sent no heartbeat since the start" in capsys.readouterr().out
    monkeypatch.setenv("AW_DATABASE_URL", f"sqlite:///{settings.var_dir}/none.db")
    print_address.main(["worker"])
    shown = capsys.readouterr().out
    assert (READY in shown, "no database at" in shown, "/admin " in shown) == (False, True, True)


def test_banner_shows_a_database_without_tables_in_one_line(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (settings.var_dir / "empty.db").touch()
    monkeypatch.setenv("AW_DATABASE_URL", f"sqlite:///{settings.var_dir}/empty.db")
    print_address.main(["worker"])
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  Node ")]
    assert line == "  Node     its state is not known: no such table: node"


def test_banner_of_a_machine_without_a_worker_names_no_node(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    make_node(database, "here", closed_reason="its disk is full")
    print_address.main([])
    shown = capsys.readouterr().out
    assert (READY in shown, "disk" in shown) == (True, False)
