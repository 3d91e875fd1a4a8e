"""Limits inside a real sandbox, tested as the agent's user through the sandbox's own agent server."""

import json
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shared.sandboxes import specs
from tests.services import http
from tests.services.deployment import Deployment
from tests.services.engine import SANDBOX_IMAGE
from tests.services.private_engine import PrivateEngine

PIDS = 200
AGENT_UID = 10001
EPERM = 1

Run = Callable[[str], dict[str, Any]]

# Each output line has the error number of one system call; 0 means it was allowed. The calls go to the kernel directly,
# because programs may check the user first.
SYSTEM_CALLS = """
    import ctypes, os
    libc = ctypes.CDLL(None, use_errno=True)
    NAMESPACES = {"user": 0x10000000, "mount": 0x20000, "network": 0x40000000, "pid": 0x20000000}
    def report(name, result):
        print(name, ctypes.get_errno() if result else 0, flush=True)
    for name, flag in NAMESPACES.items():
        report("unshare-" + name, libc.unshare(flag))
    report("mount-tmpfs", libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
    report("mount-bind", libc.mount(b"/etc", b"/tmp", None, 4096, None))
    report("mount-proc", libc.mount(b"none", b"/tmp", b"proc", 0, None))
    report("setns", libc.setns(os.open("/proc/self/ns/mnt", os.O_RDONLY), 0))
    report("chroot", libc.chroot(b"/tmp"))
    report("setuid", libc.setuid(0))
    report("reboot", libc.reboot(0x89ABCDEF))
"""
FORK_BOMB = f"""
    import os, signal, time
    children = []
    for _ in range({PIDS * 3}):
        try:
            child = os.fork()
        except BlockingIOError:
            print("rejected after", len(children))
            break
        if child == 0:
            time.sleep(30)
            os._exit(0)
        children.append(child)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
"""


@pytest.fixture
def sandbox(installed: Deployment) -> Iterator[dict[str, Any]]:
    """A sandbox of the real image with few processes."""
    installed.prepare(SANDBOX_IMAGE)
    with installed.database.transaction() as session:
        specs.change(session, SANDBOX_IMAGE, {"pids": PIDS})
    installed.start_api()
    installed.start_worker()
    with installed.user("alice") as alice:
        yield alice.await_sandbox(alice.start_sandbox(), "RUNNING", deadline_seconds=120)


@pytest.fixture
def url(sandbox: dict[str, Any]) -> str:
    """The URL of the sandbox's agent server."""
    [found] = [item["url"] for item in sandbox["exposed_urls"] if item["name"] == "AGENT_SERVER"]
    return str(found)


@pytest.fixture
def run(sandbox: dict[str, Any], url: str) -> Run:
    """Return a function that runs a command as the agent's shell does."""

    def run(command: str) -> dict[str, Any]:
        response = http.post(
            f"{url}/api/bash/execute_bash_command",
            json={"command": command, "timeout": 60},
            headers={"X-Session-API-Key": sandbox["session_api_key"]},
            timeout=90,
        )
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found | {"stdout": found["stdout"] or ""}

    return run


@pytest.mark.nightly  # `tests/isolation` covers this for each change
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_agent_is_confined_to_its_sandbox(sandbox: dict[str, Any], url: str, run: Run, engine: PrivateEngine) -> None:
    """Check all limits in one sandbox, whose boot takes longer than the checks."""
    assert run("id -u")["stdout"].strip() == str(AGENT_UID)
    assert_no_privileges(run)
    assert_system_calls_are_rejected(run)
    assert_no_way_to_the_engine(run, engine, sandbox["id"])
    assert_processes_are_bounded(run)
    assert_log_is_bounded(run, engine, sandbox["id"])
    assert http.get(f"{url}/health", timeout=20).status_code == 200
    assert run("echo still running")["stdout"].strip() == "still running"


def python(run: Run, script: str) -> str:
    done = run(f"python3 - <<'END'\n{textwrap.dedent(script)}\nEND")
    assert done["exit_code"] == 0, done
    return str(done["stdout"])


def assert_no_privileges(run: Run) -> None:
    status = dict(line.split(":\t", 1) for line in run("cat /proc/self/status")["stdout"].splitlines() if ":\t" in line)
    empty = "0" * 16
    assert {name: status[name] for name in status if name.startswith("Cap")} == dict.fromkeys(
        ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), empty
    )
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def assert_system_calls_are_rejected(run: Run) -> None:
    lines = python(run, SYSTEM_CALLS).splitlines()
    assert len(lines) == 11
    assert {line for line in lines if int(line.split()[1]) != EPERM} == set()
    for command in ("unshare --user --map-root-user true", "mount -t tmpfs none /mnt", "unshare --mount true"):
        assert run(command)["exit_code"] not in (0, 127), command


def assert_no_way_to_the_engine(run: Run, engine: PrivateEngine, sandbox_id: str) -> None:
    """Check that the sandbox has no engine socket, and of the machine's files only its volume and the engine's own."""
    assert run("ls /var/run/docker.sock /run/docker.sock")["exit_code"] != 0
    assert run("find / -xdev -name 'docker*.sock' 2>/dev/null")["stdout"] == ""
    mounts = json.loads(engine.docker("inspect", "--format", "{{json .Mounts}}", f"aw-{sandbox_id}"))
    assert [(mount["Type"], mount["Destination"]) for mount in mounts] == [("volume", "/workspace")]
    mounted = run("cat /proc/self/mountinfo")["stdout"].splitlines()
    on_disk = [line.split()[4] for line in mounted if line.partition(" - ")[2].split()[1].startswith("/dev/")]
    assert on_disk
    assert set(on_disk) <= {"/workspace", "/etc/resolv.conf", "/etc/hostname", "/etc/hosts", "/usr/sbin/docker-init"}


def assert_processes_are_bounded(run: Run) -> None:
    rejected, after, count = python(run, FORK_BOMB).split()
    assert (rejected, after) == ("rejected", "after")
    assert int(count) < PIDS


def assert_log_is_bounded(run: Run, engine: PrivateEngine, sandbox_id: str) -> None:
    """Check that the agent can't write to the container's log, and that the engine rotates what its server writes."""
    assert run("echo forged > /proc/1/fd/1")["exit_code"] != 0
    config = json.loads(engine.docker("inspect", "--format", "{{json .HostConfig.LogConfig}}", f"aw-{sandbox_id}"))
    assert config == {"Type": "json-file", "Config": {"max-file": "3", "max-size": "10m"}}
