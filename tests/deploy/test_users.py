"""`deploy/users`: the users of the service's processes."""

from pathlib import Path

import pytest

from tests.deploy.machine import Machine

CREATE = "useradd --system --gid {} --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.stub("getent", '[ -e "$STATE/$1-$2" ]')
    for command, kind in (("groupadd", "group"), ("useradd", "passwd")):
        machine.stub(command, f'touch "$STATE/{kind}-${{!#}}"')
    return machine


def test_users_are_created_once_by_root(machine: Machine) -> None:
    first = machine.run("users", root=True)
    assert (first.status, first.complaint) == (0, "")
    assert machine.calls("groupadd", "useradd") == [
        "groupadd --system aw",
        "groupadd --system aw-door",
        "groupadd --system aw-egress",
        f"{CREATE.format('aw')} aw-api",
        f"{CREATE.format('aw')} aw-worker",
        f"{CREATE.format('aw-door')} aw-door",
        f"{CREATE.format('aw-egress')} aw-egress",
    ]
    second = machine.run("users", root=True)
    assert (second.status, second.said) == (0, "")
    assert len(machine.calls("groupadd", "useradd")) == 7


def test_users_are_not_created_without_root(machine: Machine) -> None:
    done = machine.run("users")
    assert (done.status, done.said, done.complaint) == (0, "", "")
    assert machine.calls("groupadd", "useradd") == []
