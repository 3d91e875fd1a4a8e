"""An update of a cluster of two machines, process by process, under a load of 50 requests per second.

It leads from the newest commit with an older schema to this tree, as documented for an installation with pip.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.cluster import figures
from tests.cluster.conversation import Conversation, allow, make_key, running_model
from tests.cluster.data import running_data
from tests.cluster.load import RATE, Load
from tests.cluster.machines import Machine
from tests.cluster.service import READY, WORKING, Installed, copy_code, install, write_settings
from tests.cluster.settings import LOAD_IMAGE, LOAD_SPEC, OWN_SANDBOX_IMAGE, settings_of
from tests.cluster.transcript import Transcript
from tests.integration.earlier_code import find_earlier_commit
from tests.waiting import eventually

pytestmark = pytest.mark.nightly
PROCESSES = ("web=2", "worker=2", "flower=0")
# The duration of the load with the earlier code, and with the new code.
STEADY_SECONDS = 20
# The settings that a machine with an API sets to its own address.
ADDRESSES = ("AW_HOST", "AW_NODE_ADDRESS")
DEFAULT_IMAGE = f"AW_DEFAULT_SANDBOX_IMAGE={OWN_SANDBOX_IMAGE}"


@pytest.fixture
def environments(folder: Path, transcript: Transcript) -> list[Installed]:
    """The earlier code, installed in a separate environment for each machine."""
    source = copy_code(folder / "earlier", find_earlier_commit())
    return [install(folder / f"on-{name}", transcript, f"{name}$", source) for name in ("first", "second")]


def test_rolling_update_under_load_fails_no_request_and_loses_no_write(
    machines: tuple[Machine, Machine], environments: list[Installed], folder: Path, transcript: Transcript
) -> None:
    source = copy_code(folder / "new")
    both = [*zip(machines, environments, strict=True)]
    first, on_first = both[0]
    urls = [f"http://{machine.address}:3000" for machine in machines]
    with running_data(first) as data, ExitStack() as stack:
        write_settings(first, [*settings_of(first, data), DEFAULT_IMAGE])
        start(stack, on_first, first, READY)
        join(stack, both)
        conversation = start_conversation(stack, on_first, first, transcript)
        on_first.run(first, "specs", "add", LOAD_IMAGE, *LOAD_SPEC)
        key = make_key(on_first, first, "load")
        with under_load(first, Load(urls, key)) as load:
            time.sleep(STEADY_SECONDS)
            load.phase = "update"
            for machine, environment in both:
                update(environment, machine, source, load)
            load.phase = "after"
            time.sleep(STEADY_SECONDS)
        busy = f"load average {os.getloadavg()[1]:.1f} on {os.cpu_count()} processors"
        transcript.add(f"({RATE} requests per second meanwhile; {busy})", figures.describe(load.requests), 0)
        assert load.failures == []
        assert figures.too_slow(load.requests, quiet="before") == []
        assert figures.rate(sorted(load.requests, key=lambda request: request.began)) > RATE * 0.98
        await_kept(load, first, urls[0], transcript)
        conversation.go_on()
        for machine, _ in both:
            assert sorted(machine.engine.containers()) == sorted(machine.engine.volumes())
        on_first.run(first, "nodes", "list")


def start(stack: ExitStack, environment: Installed, machine: Machine, until: str) -> None:
    """Run all processes of a machine until the end of the stack's block."""
    stack.enter_context(
        environment.running(machine, f"agent-workspace all {' '.join(PROCESSES)}", "all", *PROCESSES, until=until)
    )


def join(stack: ExitStack, both: list[tuple[Machine, Installed]]) -> None:
    """Join the second machine as a node with its own API."""
    (first, on_first), (second, on_second) = both
    invitation = on_first.run(first, "nodes", "invite")
    own = [DEFAULT_IMAGE, *(f"{name}={second.address}" for name in ADDRESSES)]
    write_settings(second, [*invitation.splitlines(), *own])
    start(stack, on_second, second, WORKING)
    on_first.await_node(first, second.namespace.name)


def start_conversation(
    stack: ExitStack, installed: Installed, machine: Machine, transcript: Transcript
) -> Conversation:
    """Start a conversation with the earlier code."""
    model = stack.enter_context(running_model(machine))
    allow(model, machine, installed)
    conversation = Conversation(machine, make_key(installed, machine, "alice"), transcript)
    conversation.start(model)
    return conversation


@contextmanager
def under_load(machine: Machine, load: Load) -> Iterator[Load]:
    """Send the load from a machine until the end of the block."""
    thread = threading.Thread(target=partial(machine.namespace.call, load.run))
    thread.start()
    try:
        assert load.began.wait(300)
        yield load
    finally:
        load.ended.set()
        thread.join()


def update(environment: Installed, machine: Machine, source: Path, load: Load) -> None:
    """Install the new code on a machine, migrate, and restart its processes."""
    name = machine.namespace.name
    load.phase = f"install on {name}"
    environment.install(source, f"{name}$")
    load.phase = f"migrate on {name}"
    environment.run(machine, "db", "migrate")
    load.phase = f"restart on {name}"
    environment.python(machine, "-m", "deploy.service.restart")


def await_kept(load: Load, machine: Machine, url: str, transcript: Transcript) -> None:
    """Wait until the service has all acknowledged writes."""
    began = time.monotonic()
    find_wrong = partial(machine.namespace.call, partial(load.journal.find_wrong, url, load.key))
    try:
        eventually(lambda: not find_wrong(), deadline_seconds=180, interval_seconds=1)
    except AssertionError:
        raise AssertionError("\n".join(find_wrong())) from None
    transcript.add("(all acknowledged writes are there)", load.journal.describe(), time.monotonic() - began)
