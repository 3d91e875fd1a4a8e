"""The systemd units, started by systemd as init: a conversation, and an update during requests."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from shared.crypto import new_secret_key
from tests.cluster.booted import Booted, Copy, booted, copied_machine
from tests.cluster.conversation import SANDBOXES, Conversation
from tests.cluster.data import running_data
from tests.cluster.machines import Machine, running_machine
from tests.cluster.reading import reading
from tests.cluster.service import UV, copy_code
from tests.cluster.settings import IMAGES, LOAD_IMAGE, LOAD_SPEC, settings_of, tag_images
from tests.cluster.transcript import Transcript
from tests.services.directories import short_directory
from tests.waiting import eventually

pytestmark = pytest.mark.nightly
BIN = "/opt/agent-workspace/bin"
FOLDER = "/root/agent-workspace"
COMMAND = (f'cd {FOLDER} && exec {BIN}/agent-workspace "$@"', "sh")
NODE_UNITS = ("engine-filter", "door", "egress-proxy", "worker")
UNITS = [f"agent-workspace-{name}" for name in ("server@1", "server@2", *NODE_UNITS)]
USERS = {"server@1": "aw-api", "door": "aw-door", "engine-filter": "root", "worker": "aw-worker"}
# The steps of docs/operate/systemd.md. The engine is not one of the copy's units.
INSTALL = f"""
cd {{source}}
/usr/bin/python3 -m venv --without-pip /opt/agent-workspace
{{uv}} pip install --python {BIN}/python --constraint requirements.lock .
deploy/users
mkdir -m 700 /etc/agent-workspace
cat >/etc/agent-workspace/env <<'END'
{{settings}}
END
cp deploy/systemd/*.service /etc/systemd/system/
mkdir -p -m 700 {FOLDER}/var
ln -s /etc/agent-workspace/env {FOLDER}/var/env
"""


@pytest.fixture
def machine() -> Iterator[Machine]:
    with short_directory("run", in_memory=True) as run:
        run.chmod(0o755)
        with running_machine("first", 1, IMAGES, run=run) as found:
            tag_images(found)
            yield found


@pytest.fixture
def copy(transcript: Transcript) -> Iterator[Copy]:
    with copied_machine(transcript) as found:
        yield found


def test_units_run_a_conversation_and_are_updated(machine: Machine, copy: Copy, folder: Path) -> None:
    source = copy_code(folder / "source")
    with running_data(machine) as data:
        settings = [*settings_of(machine, data), f"AW_SECRET_KEYS={new_secret_key()}", "AW_SANDBOX_DNS=none"]
        script = INSTALL.format(source=source, uv=UV, settings="\n".join(settings))
        copy.prepare(script, "$ (install the package and its units)")
        with booted(machine, copy) as init:
            init.run("systemctl", "enable", "--now", *UNITS)
            eventually(partial(is_ready, init), deadline_seconds=180, interval_seconds=1)
            assert states(init) == dict.fromkeys(UNITS, "active")
            conversation = start_conversation(init, machine)
            history = conversation.events()
            machine.engine.docker("exec", f"aw-{conversation.sandbox_id}", "sh", "-c", "echo precious >/workspace/kept")
            assert update(init, conversation) == []
            init.run("systemctl", "list-units", "--no-legend", "agent-workspace*")
            assert states(init) == dict.fromkeys(UNITS, "active")
            assert users(init) == USERS
            boot_again(conversation)
            assert (
                machine.engine.docker("exec", f"aw-{conversation.sandbox_id}", "cat", "/workspace/kept") == "precious\n"
            )
            assert conversation.events()[: len(history)] == history


def states(init: Booted) -> dict[str, str]:
    """The state of each unit."""
    return {unit: init.try_to_run("systemctl", "is-active", unit) for unit in UNITS}


def users(init: Booted) -> dict[str, str]:
    """The users of the processes of some units."""
    pids = {name: init.try_to_run("systemctl", "show", "-P", "MainPID", f"agent-workspace-{name}") for name in USERS}
    return {name: init.try_to_run("ps", "-o", "user:20=", "-p", pid) for name, pid in pids.items()}


def is_ready(init: Booted) -> bool:
    """Whether the node accepts sandboxes."""
    return "READY" in command(init, "nodes", "list")


def command(init: Booted, *words: str) -> str:
    """Run a command as documented, as root in a folder with a link to the settings; return its output."""
    return init.try_to_run("sh", "-c", *COMMAND, *words)


def start_conversation(init: Booted, machine: Machine) -> Conversation:
    """Start a conversation in a sandbox with a disk."""
    said = command(init, "specs", "add", LOAD_IMAGE, *LOAD_SPEC)
    assert "added" in said, said
    command(init, "users", "create", "alice")
    key = init.run("sh", "-c", *COMMAND, "keys", "create", "alice", "--name", "tests", into=Transcript()).strip()
    conversation = Conversation(machine, key, init.transcript)
    conversation.start_without_agent()
    return conversation


def update(init: Booted, conversation: Conversation) -> list[str]:
    """Restart all units as documented; return the requests that failed during the restart."""
    with reading(conversation.machine, f"http://{conversation.machine.address}:3000", conversation.key) as reader:
        init.run("systemctl", "restart", "agent-workspace-migrate")
        init.run("systemctl", "restart", "agent-workspace-worker")
        for number in (1, 2):
            init.run("systemctl", "restart", f"agent-workspace-server@{number}")
        init.run("systemctl", "restart", *(f"agent-workspace-{name}" for name in NODE_UNITS))
        eventually(partial(is_ready, init), deadline_seconds=120, interval_seconds=1)
    return reader.failures


def boot_again(conversation: Conversation) -> None:
    """Stop and resume the conversation's sandbox, so that the engine mounts its disk again."""
    conversation.send("POST", f"{SANDBOXES}/{conversation.sandbox_id}/pause", params={"kind": "stopped"})
    conversation.await_sandbox("PAUSED")
    conversation.send("POST", f"{SANDBOXES}/{conversation.sandbox_id}/resume")
    conversation.await_sandbox("RUNNING")
