"""A process holds its lease until it ends, even if it is killed."""

import os
from pathlib import Path

import pytest

from shared.ids import new_id
from tests.services import engine, leases, programs

HOLDER = "from tests.services import leases; print(leases.own_lease(), flush=True); input()"
LATER_RUN = """
import sys
from pathlib import Path
from tests.services import directories, leases
leases.LEASES = Path(sys.argv[1])
for kind in sys.argv[2:]:
    with directories.short_directory(kind):
        pass
print("ended")
"""
# Lists a container of the run that it is given.
DOCKER = """#!/bin/sh
[ $1 != ps ] || echo test-{lease}-installation
"""


@pytest.fixture
def own_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate directory of leases for this test."""
    monkeypatch.setattr(leases, "LEASES", tmp_path / "leases")
    (tmp_path / "leases").mkdir()
    return tmp_path / "leases"


def test_lease_is_held_until_its_process_ends() -> None:
    with programs.running(HOLDER) as holder:
        name = holder.read()
        assert not leases.has_ended(name)
        holder.kill()
        assert leases.has_ended(name)


def test_lease_that_is_not_known_here_has_not_ended() -> None:
    assert not leases.has_ended("unknown")


def test_directories_of_a_run_that_was_killed_long_ago_are_removed(own_leases: Path) -> None:
    lease, kind = make_old_lease(own_leases), f"k{new_id()[:8]}"
    left = Path(f"/tmp/aw-{kind}-{lease}-left")
    left.mkdir()
    with programs.running(LATER_RUN, str(own_leases), f"other{kind}", kind) as later:
        assert later.read() == "ended"
    assert not left.exists()


def test_leases_stay_as_long_as_anything_of_their_processes_is_left(
    own_leases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_directory, of_namespace, of_container, _ = made = [make_old_lease(own_leases) for _ in range(4)]
    for name, left in (("ROOT", f"aw-pg-{of_directory}-left"), ("NAMESPACES", f"awtest-{of_namespace}-left")):
        monkeypatch.setattr(engine, name, tmp_path / name)
        (tmp_path / name / left).mkdir(parents=True)
    docker = tmp_path / "docker"
    docker.write_text(DOCKER.format(lease=of_container))
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(engine, "_sweep", lambda *_: None)  # as if Docker kept the container
    engine.sweep_the_dead()
    assert {path.name for path in own_leases.iterdir()} == {*made[:-1]}


def make_old_lease(folder: Path) -> str:
    """Make the lease of a process that ended long ago; return its name."""
    file = folder / f"p{new_id()[:8]}"
    file.touch()
    os.utime(file, (0, 0))
    return file.name
