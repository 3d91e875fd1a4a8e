"""`models`, and the egress of specs."""

import pytest

from shared.db.database import Database
from shared.sandboxes import specs
from tests.shared.cli.results import Cli, assert_complains, rows

SERVER = "192.168.1.20:8000"


def test_model_servers_are_allowed_listed_and_refused(migrated: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_MODEL_SERVERS", "192.168.1.21:8000")
    for _ in range(2):  # safe to repeat
        assert migrated("models", "allow", SERVER).status == 0
    listed = [row[:2] for row in rows(migrated("models", "list"))]
    assert listed == [["192.168.1.21:8000", "AW_MODEL_SERVERS"], [SERVER, "models allow"]]
    assert migrated("models", "refuse", SERVER).status == 0
    assert_complains(migrated("models", "refuse", SERVER), "no model server", status=3)
    assert_complains(migrated("models", "allow", "vllm:8000"), "IPv4 address and a port")


def test_egress_of_a_spec_is_open_until_it_is_changed(migrated: Cli, database: Database) -> None:
    assert migrated("specs", "add", "own:1").status == 0
    assert migrated("specs", "add", "own:2", "--egress", "none").status == 0
    assert migrated("specs", "set", "own:1", "--egress", "10.1.0.0/16, OPEN").status == 0
    with database.reading() as session:
        first, second = specs.get_spec(session, "own:1"), specs.get_spec(session, "own:2")
    assert (first.egress, first.revision, second.egress) == ("open,10.1.0.0/16", 1, "none")
    assert_complains(migrated("specs", "set", "own:1", "--egress", "https://pypi.org"), "neither a scheme nor a path")
    assert migrated("specs", "set", "own:1", "--egress", "*.PyPI.org").status == 0
    with database.reading() as session:
        assert (first := specs.get_spec(session, "own:1")).egress == "*.pypi.org"
    assert first.revision == 2, "containers that are created from now on get the proxy"
