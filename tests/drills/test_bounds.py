"""The checker of the isolation between sandboxes, with an engine that lists one container."""

import subprocess
from ipaddress import IPv4Network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shared.db.database import Database
from shared.states import Reason, Status
from tests.drills.bounds import Bounds
from tests.drills.engine_listing import sandbox_name
from tests.factories import ApiUser, make_sandbox

ADDRESS = "198.18.161.2"


def bounds(name: str) -> Bounds:
    found = Bounds(SimpleNamespace(host=""), "installation", "node-a", IPv4Network("198.18.161.0/24"), 0, Path("/none"))  # type: ignore[arg-type]
    socket = SimpleNamespace(addresses=lambda *_: {name: ADDRESS})
    vars(found)["_socket"] = socket
    return found


@pytest.mark.parametrize("reason", [None, Reason.ALREADY_USED])
@pytest.mark.parametrize("known", [set(), {ADDRESS}])
def test_rules_contain_each_container_except_quarantined_ones(
    database: Database, user: ApiUser, monkeypatch: pytest.MonkeyPatch, reason: Reason | None, known: Any
) -> None:
    columns: dict[str, Any] = {"status": Status.DELETED, "reason": reason} if reason else {}
    sandbox = make_sandbox(database, user, **columns)
    for check in ("_wrong_names", "_wrong_disks", "_shut_door"):
        monkeypatch.setattr(Bounds, check, lambda *_: [])
    monkeypatch.setattr(Bounds, "_known_to_rules", lambda _: known)
    found = bounds(sandbox_name(sandbox.id)).violations(database)
    assert (found == []) == (known == (set() if reason else {ADDRESS}))


def test_file_is_read_from_a_disk_that_is_not_mounted(tmp_path: Path) -> None:
    """The engine mounts a sandbox's disk only while its container runs."""
    (files := tmp_path / "files" / "conversations").mkdir(parents=True)
    (files / "events").write_text("said")
    engine = SimpleNamespace(host="", data=tmp_path)
    found = Bounds(engine, "installation", "node-a", IPv4Network("198.18.161.0/24"), 0, Path("/none"))  # type: ignore[arg-type]
    found.images.mkdir(parents=True)
    image = str(found.disk_image("1"))
    assert found.read_file("1", "conversations/events") == ""
    command = ["/usr/sbin/mke2fs", "-q", "-t", "ext4", "-d", str(files.parent), image, "8M"]
    subprocess.run(command, check=True, capture_output=True)
    assert found.read_file("1", "conversations/events") == "said"
    assert found.read_file("1", "conversations/other") == ""
