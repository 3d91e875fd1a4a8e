"""The setup of a cluster of two machines, and a conversation on the second through the API of the first.

The machines are network namespaces with separate addresses, routes, firewalls and engines. They share the kernel, the
disk and the clock.
"""

from collections.abc import Iterator

import pytest

from tests.cluster.data import running_data
from tests.cluster.machines import Machine, running_machines
from tests.cluster.service import READY, Installed, write_settings
from tests.cluster.settings import IMAGES, settings_of
from tests.cluster.transcript import Transcript

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[Machine, Machine]]:
    with running_machines(IMAGES) as found:
        yield found


def test_second_machine_joins_by_one_command_and_runs_a_conversation(
    machines: tuple[Machine, Machine], installed: Installed, transcript: Transcript
) -> None:
    first, second = machines
    with running_data(first) as data:
        write_settings(first, settings_of(first, data))
        with installed.running(first, "agent-workspace all web=2", "all", "web=2", until=READY):
            with installed.joined(first, second):
                installed.await_node(first, "second")
                installed.run(first, "nodes", "list")
                installed.run(first, "nodes", "cordon", "first")
                said = installed.demo(first, f"http://{first.address}:3000")
                assert "FINISHED" in said.upper()
                found = transcript.run("second$ docker ps", ["docker", "--host", second.engine.host, "ps"])
                assert len(second.engine.containers()) == 1, found
                assert first.engine.containers() == []
            installed.run(first, "nodes", "list")
