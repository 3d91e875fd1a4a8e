"""Both machines of a cluster are lost, and clean ones are restored from a backup: the conversation continues."""

import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.conversation import SANDBOXES, Conversation, allow, make_key, running_model
from tests.cluster.data import new_password, running_data
from tests.cluster.machines import Machine, running_machines
from tests.cluster.service import NODE_ONLY, READY, WORKING, Installed, write_settings
from tests.cluster.settings import IMAGES, settings_of
from tests.cluster.transcript import Transcript

pytestmark = pytest.mark.nightly
PASSPHRASE = "correct horse battery staple"


@dataclass
class Backup:
    """The backup, and what operators keep beside it."""

    folder: Path
    password: str
    # The var/env of each machine.
    settings: dict[str, list[str]]

    @property
    def passphrase(self) -> tuple[str, str]:
        """The option with the file of the passphrase."""
        return "--passphrase-file", str(self.folder / "passphrase")


@pytest.fixture
def backup(folder: Path) -> Backup:
    made = Backup(folder / "backup", new_password(), {})
    made.folder.mkdir()
    (made.folder / "passphrase").write_text(PASSPHRASE)
    return made


def test_conversation_continues_after_both_machines_were_lost_and_restored(
    installed: Installed, backup: Backup, transcript: Transcript
) -> None:
    with machines_with_data(backup) as (first, second), ExitStack() as stack:
        conversation = run_and_back_up(installed, first, second, backup, transcript, stack)
        events = conversation.events()
    transcript.add("(both machines are gone, with the database and the broker)", "", 0)
    with machines_with_data(backup) as (first, second), ExitStack() as stack:
        conversation.machine = first
        restore(installed, first, second, backup)
        run_again(installed, first, second, stack)
        found = conversation.await_sandbox("ERROR")
        assert found["reason"] == "container_missing"
        transcript.add(
            "(its sandbox)", f"{found['status']} {found['reason']}\n{textwrap.fill(found['detail'], 110)}", 0
        )
        assert conversation.events() == events
        began = time.monotonic()
        conversation.send("POST", f"{SANDBOXES}/{conversation.sandbox_id}/resume")
        conversation.await_sandbox("RUNNING")
        transcript.add("(resume its sandbox)", "RUNNING", time.monotonic() - began)
        with running_model(first):
            conversation.go_on()
        assert second.engine.containers() == [f"aw-{conversation.sandbox_id}"]
        installed.run(first, "nodes", "list")


@contextmanager
def machines_with_data(backup: Backup) -> Iterator[tuple[Machine, Machine]]:
    """Start two clean machines. The first has an empty database and broker, at the addresses in the kept settings."""
    with running_machines(IMAGES) as machines, running_data(machines[0], backup.password) as data:
        settings = settings_of(machines[0], data)
        backup.settings.setdefault("first", settings)
        yield machines


def run_and_back_up(
    installed: Installed, first: Machine, second: Machine, backup: Backup, transcript: Transcript, stack: ExitStack
) -> Conversation:
    """Run a conversation on the second machine until it has an answer, pause its sandbox, and back everything up."""
    write_settings(first, backup.settings["first"])
    stack.enter_context(installed.running(first, "agent-workspace all", "all", "flower=0", until=READY))
    stack.enter_context(installed.joined(first, second))
    installed.await_node(first, "second")
    installed.run(first, "nodes", "cordon", "first")
    conversation = Conversation(first, make_key(installed, first, "alice"), transcript)
    with running_model(first) as model:
        allow(model, first, installed)
        conversation.start(model)
    installed.run(first, "nodes", "uncordon", "first")
    conversation.send("POST", f"{SANDBOXES}/{conversation.sandbox_id}/pause", params={"kind": "stopped", "wait": 60})
    conversation.await_sandbox("PAUSED")
    installed.run(first, "db", "backup", str(backup.folder / "db"), *backup.passphrase)
    for machine in (first, second):
        installed.run(machine, "nodes", "backup", str(backup.folder / machine.namespace.name))
        settings = (machine.folder / "var" / "env").read_text().splitlines()
        backup.settings[machine.namespace.name] = settings
    return conversation


def restore(installed: Installed, first: Machine, second: Machine, backup: Backup) -> None:
    """Restore the settings, then the database with its keys, then the files of each node."""
    for machine in (first, second):
        write_settings(machine, backup.settings[machine.namespace.name])
    installed.run(first, "db", "restore", str(backup.folder / "db"), *backup.passphrase)
    for machine in (first, second):
        installed.run(machine, "nodes", "restore", str(backup.folder / machine.namespace.name))


def run_again(installed: Installed, first: Machine, second: Machine, stack: ExitStack) -> None:
    """Start the service on both machines."""
    stack.enter_context(installed.running(first, "agent-workspace all", "all", "flower=0", until=READY))
    stack.enter_context(installed.running(second, f"agent-workspace {' '.join(NODE_ONLY)}", *NODE_ONLY, until=WORKING))
    for name in ("first", "second"):
        installed.await_node(first, name)
