"""A machine of the cluster loses its power: its sandboxes are reported, and another machine replaces it."""

import textwrap
import time
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from tests.cluster.conversation import SANDBOXES, Conversation, make_key
from tests.cluster.data import running_data
from tests.cluster.machines import Machine, running_machine
from tests.cluster.service import READY, Installed, write_settings
from tests.cluster.settings import IMAGES, LOAD_IMAGE, LOAD_SPEC, settings_of, tag_images
from tests.cluster.transcript import Transcript
from tests.waiting import eventually

pytestmark = pytest.mark.nightly


def test_sandboxes_of_a_killed_machine_are_reported_and_another_machine_replaces_it(
    machines: tuple[Machine, Machine], installed: Installed, transcript: Transcript
) -> None:
    first, second = machines
    with running_data(first) as data, ExitStack() as stack:
        write_settings(first, settings_of(first, data))
        stack.enter_context(installed.running(first, "agent-workspace all", "all", "flower=0", until=READY))
        installed.run(first, "specs", "add", LOAD_IMAGE, *LOAD_SPEC)
        stack.enter_context(installed.joined(first, second))
        installed.await_node(first, "second")
        user = Conversation(first, make_key(installed, first, "alice"), transcript)
        lost = fill_second(installed, first, user)
        kill(first, second, user, lost, transcript)
        installed.run(first, "nodes", "list")
        check_new_start(user, first, transcript)
        replace(installed, first, user, lost, stack, transcript)
        installed.run(first, "nodes", "list")


def fill_second(installed: Installed, first: Machine, user: Conversation) -> dict[str, str]:
    """Start a conversation and a paused sandbox on the second machine; return the ids of the sandboxes."""
    installed.run(first, "nodes", "cordon", "first")
    user.start_without_agent()
    paused = user.send("POST", SANDBOXES, params={"wait": 60})["id"]
    user.send("POST", f"{SANDBOXES}/{paused}/pause", params={"wait": 60})
    installed.run(first, "nodes", "uncordon", "first")
    installed.run(first, "nodes", "list")
    return {"running": user.sandbox_id, "paused": paused}


def kill(first: Machine, second: Machine, user: Conversation, lost: dict[str, str], transcript: Transcript) -> None:
    """Kill the second machine, and wait until the service reports its sandboxes."""
    history = user.events()
    began = time.monotonic()
    second.lose_power()
    transcript.add("(all processes of second are killed)", "", time.monotonic() - began)
    check_new_start(user, first, transcript)
    eventually(lambda: shown(user, lost["running"])["status"] == "ERROR", deadline_seconds=120)
    found = shown(user, lost["running"])
    transcript.add("(the running sandbox)", describe(found), time.monotonic() - began)
    assert found["reason"] == "node_lost"
    assert "second" in found["detail"]
    assert "files" in found["detail"]
    assert shown(user, lost["paused"])["status"] == "PAUSED"
    transcript.add("(the paused sandbox)", describe(shown(user, lost["paused"])), time.monotonic() - began)
    assert user.events() == history


def check_new_start(user: Conversation, first: Machine, transcript: Transcript) -> None:
    """Assert that a new sandbox runs on the remaining machine."""
    began = time.monotonic()
    sandbox_id = start(user)
    transcript.add("(a new sandbox)", describe(shown(user, sandbox_id)), time.monotonic() - began)
    assert f"aw-{sandbox_id}" in first.engine.containers()


def replace(
    installed: Installed,
    first: Machine,
    user: Conversation,
    lost: dict[str, str],
    stack: ExitStack,
    transcript: Transcript,
) -> None:
    """Delete the lost node, join a clean machine, and resume the lost sandboxes there."""
    third = stack.enter_context(running_machine("third", 3, IMAGES, first))
    tag_images(third)
    stack.enter_context(installed.joined(first, third))
    installed.await_node(first, "third")
    installed.run(first, "nodes", "forget", "second", "--yes")
    eventually(lambda: shown(user, lost["paused"]).get("reason") == "node_lost", deadline_seconds=60)
    transcript.add("(the paused sandbox)", describe(shown(user, lost["paused"])), 0)
    installed.run(first, "nodes", "cordon", "first")
    began = time.monotonic()
    for sandbox_id in (*lost.values(), start(user)):
        user.send("POST", f"{SANDBOXES}/{sandbox_id}/resume")
        eventually(partial(is_running_on, user, sandbox_id, third), deadline_seconds=120)
    found = third.engine.docker("ps", "--format", "{{.Names}} {{.Status}}")
    transcript.add("(both are resumed, and another is started) third$ docker ps", found, time.monotonic() - began)
    assert user.events()
    eventually(lambda: "second" not in installed.nodes(first), deadline_seconds=60)


def start(user: Conversation) -> str:
    """Start a sandbox, and wait until it runs; return its id."""
    sandbox_id: str = user.send("POST", SANDBOXES)["id"]
    eventually(lambda: shown(user, sandbox_id)["status"] == "RUNNING", deadline_seconds=120)
    return sandbox_id


def is_running_on(user: Conversation, sandbox_id: str, machine: Machine) -> bool:
    return shown(user, sandbox_id)["status"] == "RUNNING" and f"aw-{sandbox_id}" in machine.engine.containers()


def shown(user: Conversation, sandbox_id: str) -> dict[str, Any]:
    found: dict[str, Any] = user.send("GET", f"{SANDBOXES}/{sandbox_id}")
    return found


def describe(found: dict[str, Any]) -> str:
    return f"{found['status']} {found.get('reason') or ''}\n{textwrap.fill(found.get('detail') or '', 110)}"
