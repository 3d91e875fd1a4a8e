"""`deploy/users`: the users of the service's processes."""

from pathlib import Path

import pytest

from tests.deploy.machine import Machine

CREATE = "useradd --system --gid aw --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.stub("getent", '[ -e "$STATE/$2" ]')
    for command in ("groupadd", "useradd"):
        machine.stub(command, 'touch "$STATE/${!#}"')
    return machine


def test_users_are_created_by_root_one_time(machine: Machine) -> None:
    first = machine.run("users", root=True)
    assert (first.status, first.complaint) == (0, "")
    assert machine.calls("groupadd", "useradd") == ["groupadd --system aw", f"{CREATE} aw-api", f"{CREATE} aw-worker"]
    second = machine.run("users", root=True)
    assert (second.status, second.said) == (0, "")
    assert len(machine.calls("groupadd", "useradd")) == 3


def test_others_than_root_create_none(machine: Machine) -> None:
    done = machine.run("users")
    assert (done.status, done.said, done.complaint) == (0, "", "")
    assert machine.calls("groupadd", "useradd") == []
