"""From nothing to a cluster of two machines, and a conversation on the second through the API of the first.

The machines are network namespaces: their addresses, routes, firewalls and engines are their own. Their kernel, disk
and clock are not.
"""

from collections.abc import Iterator

import pytest

from tests.cluster.data import running_data
from tests.cluster.machines import Machine, running_machines
from tests.cluster.service import Installed, install, write_settings
from tests.cluster.transcript import Transcript
from tests.services.directories import REPOSITORY, short_directory
from tests.services.engine import SANDBOX_IMAGE
from tests.waiting import eventually

pytestmark = pytest.mark.nightly
BASE_IMAGE = "agent-workspace/base:trixie"
LOG = REPOSITORY / "var" / "log" / "cluster"
READY = "Agent Workspace is ready"
WORKING = "following_events"


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[Machine, Machine]]:
    with running_machines([BASE_IMAGE, SANDBOX_IMAGE]) as found:
        yield found


@pytest.fixture
def transcript() -> Iterator[Transcript]:
    found = Transcript()
    yield found
    found.write(LOG / "two-machines.txt")


@pytest.fixture
def installed(transcript: Transcript) -> Iterator[Installed]:
    with short_directory("installed") as folder:
        yield install(folder, transcript)


def test_second_machine_joins_by_one_command_and_runs_a_conversation(
    machines: tuple[Machine, Machine], installed: Installed, transcript: Transcript
) -> None:
    first, second = machines
    with running_data(first) as data:
        write_settings(
            first,
            [
                f"AW_DATABASE_URL={data.database}",
                f"AW_REDIS_URL={data.broker}",
                f"AW_HOST={first.address}",
                f"AW_NODE_ADDRESS={first.address}",
            ],
        )
        with installed.running(first, "agent-workspace all web=2", "all", "web=2", until=READY):
            invitation = installed.run(first, "nodes", "invite")
            words = ("nodes", "join", second.address)
            shown = "ssh first agent-workspace nodes invite | agent-workspace nodes join " + second.address
            with installed.running(second, shown, *words, text=invitation, until=WORKING):
                _await_ready(installed, first, "second")
                installed.run(first, "nodes", "cordon", "first")
                said = installed.demo(first, f"http://{first.address}:3000")
                assert "FINISHED" in said.upper()
                found = transcript.run("second$ docker ps", ["docker", "--host", second.engine.host, "ps"])
                assert len(second.engine.containers()) == 1, found
                assert first.engine.containers() == []
            installed.run(first, "nodes", "list")


def _await_ready(installed: Installed, machine: Machine, node: str) -> None:
    def is_ready() -> bool:
        return any(
            row.split()[:2] == [node, "READY"]
            for row in installed.run(machine, "nodes", "list", into=Transcript()).splitlines()
        )

    eventually(is_ready, interval_seconds=1)
