"""Leases: what a killed process left behind is swept, and what a live one uses is not, wherever it runs."""

from pathlib import Path

from tests.services import leases, programs
from tests.services.directories import short_directory
from tests.services.engine import docker_engine, name_installation
from tests.waiting import eventually
from worker.engine import INSTALLATION_LABEL

# In a pid namespace of its own, as a number that most likely is no process's here.
AS_NUMBER = 'echo 31000 > /proc/sys/kernel/ns_last_pid; "$@"; true'
ELSEWHERE = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", AS_NUMBER, "sh"]
RESIDENT = """
import sys
from tests.services.directories import short_directory
with short_directory("lived") as directory:
    print(directory, flush=True)
    sys.stdin.readline()
"""
MAKER = f"""
import subprocess, sys
from tests.services.engine import TINY_IMAGE, name_installation
installation = name_installation()
label = "{INSTALLATION_LABEL}=" + installation
subprocess.run(["docker", "create", "--label", label, TINY_IMAGE], check=True, stdout=subprocess.DEVNULL)
print(installation, flush=True)
sys.stdin.readline()
"""
HOLDER = "from tests.services import leases; print(leases.own_lease(), flush=True); input()"


def test_directory_of_a_live_process_in_another_pid_namespace_is_kept_until_its_end() -> None:
    with programs.running(RESIDENT, prefix=ELSEWHERE) as resident:
        directory = Path(resident.read())
        with short_directory("lived"):
            assert directory.exists()
        resident.kill()

        def is_swept() -> bool:
            with short_directory("lived"):
                return not directory.exists()

        eventually(is_swept)


def test_lease_is_held_until_its_process_ends() -> None:
    with programs.running(HOLDER) as holder:
        name = holder.read()
        assert not leases.has_ended(name)
        holder.kill()
        assert leases.has_ended(name)


def test_lease_that_is_not_known_here_has_not_ended() -> None:
    assert not leases.has_ended("unknown")


def test_containers_of_a_live_process_in_another_pid_namespace_are_kept_until_its_end() -> None:
    with programs.running(MAKER, prefix=ELSEWHERE) as maker:
        installation = maker.read()
        with docker_engine(name_installation()) as engine:
            assert engine.list_containers(installation)
        maker.kill()

        def is_swept() -> bool:
            with docker_engine(name_installation()) as engine:
                return not engine.list_containers(installation)

        eventually(is_swept)
