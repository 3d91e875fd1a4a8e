"""Attacks of an agent's program on its kernel, its root and its agent server, from inside the real image.

Each blocked attack succeeds in a control: in a container of the same image without the service's options, or against
the agent's own child instead of the agent server.
"""

import json
import subprocess
from collections.abc import Iterator
from itertools import product

import pytest

from tests.isolation.sandboxes import start_sandbox
from tests.services.engine import SANDBOX_IMAGE, docker_engine, name_installation
from tests.waiting import eventually
from worker.sandboxes.container_spec import CONFIG_PATH

KEY = "key-of-the-session"
CONFIG = json.dumps({"session_api_keys": [KEY], "secret_key": "s"}).encode()
FIND_SERVER = "server=$(ps -eo pid,args | awk '/[s]erver-python .*launch/ && !/init/ {print $1; exit}')"
# Evaluates each expression among the arguments, a system call or a socket, and prints whether it is possible. Each runs
# in its own process, because some change their process.
CALL = """
import ctypes, json, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    return libc.syscall(*arguments) >= 0 or ctypes.get_errno() not in (1, 38)
def connected(*arguments):
    try:
        socket.socket(*arguments)
    except PermissionError:
        return False
    return True
def decide(expression):
    done, result = os.pipe()
    if not os.fork():
        os.write(result, b"open" if eval(expression) else b"blocked")
        os._exit(0)
    os.close(result)
    os.wait()
    return os.read(done, 9).decode()
print(json.dumps([decide(each) for each in sys.argv[1:]]))
"""
CALLS = {
    "io_uring": "call(425, 0, 0)",
    "vsock": "connected(40, 1, 0)",
    "netlink of devices": "connected(16, 3, 15)",
    "a keyring": "call(250, 0, -3, 1)",
    "BPF": "call(321, 99, 0, 0)",
    "performance events": "call(298, 0, 0, -1, -1, 0)",
    "faults of user memory": "call(323, 1)",
    "a namespace": "call(272, 0x10000000)",
    "addresses that are not random": "call(135, 0x40000)",
}
NEEDED = {
    "threads": "not __import__('threading').Thread(target=print, args=('',)).start()",
    "unix sockets": "connected(1, 1, 0)",
    "IPv6": "connected(10, 1, 0)",
    "routes": "connected(16, 3, 0)",
    "a debugger's child": "call(101, 0, 0, 0, 0)",
    "asynchronous files": "call(206, 1, ctypes.byref(ctypes.c_ulong(0)))",
}
SEIZE = "import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), 0, 0) != 0)"
# Each fails for the agent server and the init process, and succeeds for a child of the agent.
ON_PROCESSES = {
    "trace": f'python3 -c "{SEIZE}" $pid',
    "read the environment": "head -c 1 /proc/$pid/environ",
    "read the memory": "exec 3</proc/$pid/mem",
    "write the memory": "exec 3<>/proc/$pid/mem",
    "read the open files": "ls /proc/$pid/fd/",
    "read the mappings": "head -c 1 /proc/$pid/maps",
}

# These tests run in one test process, which starts the two containers once.
pytestmark = pytest.mark.xdist_group("confined_containers")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[str]:
    """A running sandbox of the real image."""
    installation = name_installation()
    with docker_engine(installation) as engine:
        name = start_sandbox(engine, installation, CONFIG)
        eventually(lambda: "startup complete" in str(engine.read_log(name).lines), deadline_seconds=180)
        yield name


@pytest.fixture(scope="module")
def unconfined() -> Iterator[str]:
    """The control: a container with fewer restrictions."""
    options = ["--user", "0", "--cap-add", "SYS_ADMIN", "--security-opt", "seccomp=unconfined", "--entrypoint", "sleep"]
    done = subprocess.run(
        ["docker", "run", "--detach", "--rm", *options, SANDBOX_IMAGE, "3600"],
        capture_output=True,
        text=True,
        check=True,
    )
    yield done.stdout.strip()
    subprocess.run(["docker", "kill", done.stdout.strip()], capture_output=True, check=True)


def attack(name: str, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", "exec", name, *command], capture_output=True, text=True, timeout=120, check=False)


def shell(name: str, script: str) -> subprocess.CompletedProcess[str]:
    return attack(name, "sh", "-c", script)


@pytest.fixture(scope="module")
def interfaces(sandbox: str, unconfined: str) -> tuple[dict[str, str], dict[str, str]]:
    """Whether each kernel interface is open in the sandbox and in the control."""
    return decide(sandbox), decide(unconfined)


def decide(name: str) -> dict[str, str]:
    tried = CALLS | NEEDED
    output = attack(name, "python3", "-c", CALL, *tried.values()).stdout
    return dict(zip(tried, json.loads(output.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("what", CALLS)
def test_kernel_interface_is_closed(interfaces: tuple[dict[str, str], dict[str, str]], what: str) -> None:
    assert [found[what] for found in interfaces] == ["blocked", "open"]


@pytest.mark.parametrize("what", NEEDED)
def test_kernel_interface_that_agents_need_is_open(
    interfaces: tuple[dict[str, str], dict[str, str]], what: str
) -> None:
    assert interfaces[0][what] == "open"


@pytest.fixture(scope="module")
def outputs(sandbox: str) -> dict[tuple[str, str], str]:
    """The output of each attack on a process: the agent server, the init process, and a child of the agent's own."""
    targets = {"server": "$server", "init": "1", "own": "$own"}
    tried = list(product(ON_PROCESSES, targets))
    lines = [
        f"( pid={targets[target]}; kill -0 $pid && echo there && {{ {ON_PROCESSES[what]} && echo done; }} ); echo END"
        for what, target in tried
    ]
    script = "; ".join([FIND_SERVER, "sleep 60 & own=$!; sleep 1", *lines, "kill $own"])
    return dict(zip(tried, shell(sandbox, script).stdout.split("END\n")[:-1], strict=True))


@pytest.mark.parametrize("what", ON_PROCESSES)
def test_agent_server_and_init_are_inaccessible(outputs: dict[tuple[str, str], str], what: str) -> None:
    assert (outputs[what, "server"], outputs[what, "init"]) == ("there\n", "there\n")
    assert outputs[what, "own"].endswith("done\n")


def test_keys_are_in_no_file_that_tools_can_read(sandbox: str) -> None:
    found = shell(
        sandbox, f"grep -rl {KEY} /workspace /home /tmp /var /run /etc /dev/shm 2>/dev/null; cat {CONFIG_PATH}"
    )
    assert found.stdout == ""
    assert KEY in shell(sandbox, f"echo {KEY} >/tmp/control; grep -rh {KEY} /tmp; rm /tmp/control").stdout


@pytest.mark.parametrize("folder", ["/", "/opt/agent-server/bin", "/usr/local/bin", "/etc", "/var/lib"])
def test_root_is_read_only(sandbox: str, unconfined: str, folder: str) -> None:
    assert shell(sandbox, f"touch {folder}/file").returncode != 0
    assert shell(unconfined, f"touch {folder}/file").returncode == 0


@pytest.mark.parametrize("folder", ["/tmp", "/var/tmp", "/home/agent"])
def test_folders_in_memory_are_limited(sandbox: str, folder: str) -> None:
    assert shell(sandbox, f"touch {folder}/file && rm {folder}/file").returncode == 0
    assert "No space left" in shell(sandbox, f"head -c 3G /dev/zero >{folder}/file; rm {folder}/file").stderr


def test_container_has_its_limits_and_rights(sandbox: str) -> None:
    assert shell(sandbox, "ulimit -n; ulimit -c").stdout.split() == ["16384", "0"]
    assert shell(sandbox, "find / -xdev -type f -perm /6000 2>/dev/null").stdout == ""
    assert shell(sandbox, "cp /bin/true /tmp/x && chmod u+s /tmp/x && find /tmp -perm /6000; rm /tmp/x").stdout


def test_tools_of_agents_work(sandbox: str) -> None:
    script = (
        "cd /workspace/project && git init -q x && tmux new-session -d 'echo hi >/tmp/hi' && sleep 2 && cat /tmp/hi"
    )
    assert shell(sandbox, script).stdout == "hi\n"
