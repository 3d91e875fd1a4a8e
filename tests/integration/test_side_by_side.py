"""Concurrent test runs on one machine share nothing, and remove only what killed runs left behind."""

import subprocess
from pathlib import Path

import pytest

from tests.services import programs
from tests.services.directories import short_directory
from tests.services.engine import TINY_IMAGE, docker_engine, name_installation, sweep_the_dead
from tests.services.private_engine import LINKS, running_private_engine
from tests.services.slots import is_unused, taken_slot
from tests.waiting import eventually
from worker.engine.docker_engine import INSTALLATION_LABEL

# In a separate pid namespace, with a pid that most likely does not exist outside it.
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


@pytest.mark.nightly  # at night, the suite itself runs concurrently
def test_concurrent_engines_share_nothing() -> None:
    with running_private_engine([]) as first, running_private_engine([]) as second:
        for what in ("host", "gateway", "address", "data"):
            assert getattr(first, what) != getattr(second, what)


@pytest.mark.nightly  # at night, the suite itself runs concurrently
def test_engine_links_only_the_requested_images() -> None:
    """Link one image only, because other test runs and builds may remove other images concurrently."""
    with running_private_engine([TINY_IMAGE]) as engine:
        assert engine.docker("images", "--all", "--format", "{{.Repository}}:{{.Tag}}").split() == [TINY_IMAGE]
        assert engine.docker("run", "--rm", "--entrypoint", "echo", TINY_IMAGE, "it runs").strip() == "it runs"


@pytest.mark.nightly  # at night, the suite itself runs concurrently
def test_bridge_of_a_killed_process_is_removed_and_that_of_a_live_one_is_kept() -> None:
    with taken_slot(lambda slot: is_unused(slot.network)) as slot:
        subprocess.run(["ip", "link", "add", slot.bridge, "type", "bridge"], check=True)
        with running_private_engine([]):
            assert (LINKS / slot.bridge).exists()
    with running_private_engine([]):
        assert not (LINKS / slot.bridge).exists()


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


@pytest.mark.nightly  # at night, the suite itself runs concurrently
def test_containers_of_a_live_process_in_another_pid_namespace_are_kept_until_its_end() -> None:
    with programs.running(MAKER, prefix=ELSEWHERE) as maker:
        installation = maker.read()
        sweep_the_dead()
        with docker_engine(name_installation()) as engine:
            assert engine.list_containers(installation)
        maker.kill()

        def is_swept() -> bool:
            sweep_the_dead()
            with docker_engine(name_installation()) as engine:
                return not engine.list_containers(installation)

        eventually(is_swept)
