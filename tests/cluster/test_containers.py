"""The deployments with Compose and Swarm on private engines, tested with the demo.

PostgreSQL comes from Debian and Valkey from its wheel, in one image with the interface of the official ones, so that
no registry is needed.
"""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pytest

from shared import __version__
from shared.crypto import new_secret_key
from tests.cluster import figures
from tests.cluster.machines import Machine, running_machines
from tests.cluster.reading import reading
from tests.cluster.transcript import Transcript
from tests.services.directories import REPOSITORY
from tests.services.engine import SANDBOX_IMAGE
from tests.waiting import eventually

pytestmark = pytest.mark.nightly
SERVICE_IMAGE = f"agent-workspace/service:{__version__}"
# Another tag of the same image, which stands for a later version.
NEXT_IMAGE = "agent-workspace/service:next"
BACKENDS_IMAGE = "agent-workspace/backends:test"
DEPLOY = REPOSITORY / "deploy"
PASSWORD = "c0ffee" * 8
COMPOSE = ["docker-compose", "-p", "aw", "-f", str(DEPLOY / "compose.yaml")]
UPDATE_ONE = "service update --detach --no-resolve-image --image"
OWN_SERVICES = ("migrate", "web", "engine-filter", "door", "egress-proxy", "worker")
# The duration of the reads before an update, and after it.
QUIET_SECONDS = 20
# The uid of `aw-egress` in the image.
EGRESS_USER = "10003"
TUNNEL = """
import socket, sys
with socket.create_connection(("10.213.0.1", 3003), timeout=30) as plug:
    plug.sendall(f"CONNECT {sys.argv[1]} HTTP/1.1\\r\\n\\r\\n".encode())
    print(plug.recv(4096).split()[1].decode())
"""
DEMO = ["python3", "-m", "deploy.demo", "--keep", "--timeout", "600"]


@dataclass(frozen=True)
class Docker:
    """The command `docker`, with its use recorded in the transcript."""

    transcript: Transcript

    def __call__(self, machine: Machine, *words: str, text: str | None = None, image: str = SERVICE_IMAGE) -> str:
        """Run a command on a machine; return its output. Stacks are deployed with `image`."""
        command = ["docker", "--host", machine.engine.host, *words]
        shown = f"{machine.namespace.name}$ docker {' '.join(words)}"
        # The machines share one file system, so their engines' sockets have other paths. Swarm inserts the host name.
        socket = {"ENGINE_SOCKET": str(machine.folder / "{{.Node.Hostname}}.sock")}
        own = images_of(machine) | socket | {"IMAGE": image}
        return self.transcript.run(shown, command, environment=os.environ | own, text=text)


@pytest.fixture(scope="module")
def images() -> list[str]:
    """The machines' images; those of the service and its backends are built here."""
    subprocess.run([DEPLOY / "image" / "build", "service"], check=True)
    backends = REPOSITORY / "tests" / "images" / "backends"
    build = [
        "docker",
        "build",
        "--network=host",
        f"--build-arg=BASE={SERVICE_IMAGE}",
        f"--tag={BACKENDS_IMAGE}",
        backends,
    ]
    subprocess.run(list(map(str, build)), check=True, env=os.environ | {"DOCKER_BUILDKIT": "0"})
    return [SANDBOX_IMAGE, SERVICE_IMAGE, BACKENDS_IMAGE]


@pytest.fixture
def machines(images: list[str]) -> Iterator[tuple[Machine, Machine]]:
    with running_machines(images) as found:
        yield found


def test_compose_runs_a_conversation(machines: tuple[Machine, Machine], transcript: Transcript) -> None:
    machine, _ = machines
    (machine.folder / "password").write_text(PASSWORD)
    (machine.folder / "env").write_text(
        f"AW_DATABASE_URL=postgresql://workspace:{PASSWORD}@127.0.0.1/workspace\n"
        f"AW_REDIS_URL=redis://:{PASSWORD}@127.0.0.1:6379/0\nAW_SANDBOX_DNS=none\n"
    )
    compose = partial(run_compose, transcript, environment_of(machine))
    try:
        compose("up", "--detach")
        eventually(lambda: health_of(machine, "aw_web") == ["healthy"] * 2, deadline_seconds=900, interval_seconds=2)
        assert "FINISHED" in compose("exec", "-T", "web", *DEMO).upper()
        compose("ps")
        assert PASSWORD not in machine.engine.docker("inspect", *machine.engine.docker("ps", "-aq").split())
        rights = {"aw_engine-filter_1": ["CHOWN", "NET_ADMIN"], "aw_egress-proxy_1": ["SETGID", "SETUID"]}
        assert capabilities(machine) == rights
        compose("exec", "-T", "web", "agent-workspace", "specs", "set", SANDBOX_IMAGE, "--egress", "listed.invalid")
        # The proxy resolves no name here, so a listed name gets a failure instead of a refusal.
        eventually(lambda: proxy_says(machine, "listed.invalid:443").startswith("5"), interval_seconds=1)
        assert proxy_says(machine, "other.invalid:443") == "403"
        processes = machine.engine.docker("top", "aw_egress-proxy_1", "-eo", "pid,uid").splitlines()[1:]
        assert {line.split()[1] for line in processes} == {EGRESS_USER}
    finally:
        transcript.add("(logs)", machine.engine.docker("ps", "-a"), 0)
        compose("logs", "--no-color", "--tail", "20")
        machine.engine.clear()


def test_swarm_runs_a_conversation_on_a_machine_that_joined(
    machines: tuple[Machine, Machine], transcript: Transcript
) -> None:
    first, second = machines
    docker = Docker(transcript)
    docker(first, "swarm", "init", "--advertise-addr", first.address)
    labels = [word for kind in ("data", "api") for word in ("--label-add", f"agent-workspace.{kind}=true")]
    docker(first, "node", "update", *labels, "first")
    docker(first, "secret", "create", "agent-workspace-password", "-", text=PASSWORD)
    docker(first, "secret", "create", "agent-workspace-env", "-", text=settings_of(first))
    for machine in machines:
        (first.folder / f"{machine.namespace.name}.sock").symlink_to(machine.socket)
    stack = ["--resolve-image", "never", "--compose-file", str(DEPLOY / "swarm" / "stack.yaml"), "agent-workspace"]
    docker(first, "stack", "deploy", *stack)
    try:
        await_ready(docker, first, "first")
        docker(first, "service", "logs", "--raw", "agent-workspace_migrate")
        token = first.engine.docker("swarm", "join-token", "--quiet", "worker").strip()
        docker(second, "swarm", "join", "--token", token, f"{first.address}:2377")
        await_ready(docker, first, "second")
        web = web_of(first)
        docker(first, "exec", web, "agent-workspace", "nodes", "cordon", "first")
        said = docker(first, "exec", web, *DEMO, "--url", f"http://{first.address}:3000", "--model-host", first.address)
        assert "FINISHED" in said.upper()
        assert len([name for name in second.engine.containers() if name.startswith("aw-")]) == 1
        docker(first, "exec", web, "agent-workspace", "nodes", "uncordon", "first")
        update(docker, machines, stack, make_key(docker, first))
        docker(first, "exec", web_of(first), "agent-workspace", "nodes", "list")
        docker(first, "service", "ls")
    finally:
        for service in first.engine.docker("service", "ls", "--format", "{{.Name}}").split():
            transcript.add(f"(log of {service})", first.engine.docker("service", "logs", "--tail", "8", service), 0)
        for machine in (second, first):
            machine.engine.docker("swarm", "leave", "--force")
            eventually(partial(is_cleared, machine), interval_seconds=1)


def await_ready(docker: Docker, machine: Machine, node: str) -> None:
    """Wait until a node accepts sandboxes."""
    began = time.monotonic()
    eventually(lambda: is_ready(machine, node), deadline_seconds=900, interval_seconds=2)
    docker.transcript.add(f"({node} is READY)", "", time.monotonic() - began)


def update(docker: Docker, machines: tuple[Machine, Machine], stack: Sequence[str], key: str) -> None:
    """Deploy the stack with another image, as documented, while a client reads."""
    first, _ = machines
    for machine in machines:
        machine.engine.docker("tag", SERVICE_IMAGE, NEXT_IMAGE)
    with reading(first, f"http://{first.address}:3000", key) as reader:
        time.sleep(QUIET_SECONDS)
        reader.phase, began = "update", time.monotonic()
        docker(first, *UPDATE_ONE.split(), NEXT_IMAGE, "agent-workspace_migrate")
        eventually(lambda: has_migrated(first), deadline_seconds=300, interval_seconds=1)
        docker(first, "stack", "deploy", *stack, image=NEXT_IMAGE)
        eventually(lambda: set(updates(first).values()) == {"completed"}, deadline_seconds=900, interval_seconds=2)
        docker.transcript.add("(all services are updated)", "", time.monotonic() - began)
        for machine in machines:
            await_ready(docker, first, machine.namespace.name)
        reader.phase = "after"
        time.sleep(QUIET_SECONDS)
    docker.transcript.add("(reads meanwhile, over kept and new connections)", figures.describe(reader.requests), 0)
    assert reader.failures == []
    assert figures.too_slow(reader.requests, quiet="before") == []


def make_key(docker: Docker, machine: Machine) -> str:
    """Create a user; return the user's API key."""
    command = ("exec", web_of(machine), "agent-workspace")
    docker(machine, *command, "users", "create", "alice")
    return machine.engine.docker(*command, "keys", "create", "alice", "--name", "tests").strip()


def updates(machine: Machine) -> dict[str, str]:
    """The update states of the stack's own services."""
    form = "{{.Spec.Name}} {{if .UpdateStatus}}{{.UpdateStatus.State}}{{end}}"
    names = [f"agent-workspace_{name}" for name in OWN_SERVICES]
    rows = machine.engine.docker("service", "inspect", "--format", form, *names).splitlines()
    return {name: state for name, _, state in (row.partition(" ") for row in rows)}


def has_migrated(machine: Machine) -> bool:
    """Whether the updated migration has ended."""
    form = "{{.Image}} {{.CurrentState}}"
    rows = machine.engine.docker("service", "ps", "--format", form, "agent-workspace_migrate").splitlines()
    return any(row.startswith(f"{NEXT_IMAGE} Complete") for row in rows)


def proxy_says(machine: Machine, target: str) -> str:
    """The status of the egress proxy's response to a request for a tunnel; empty: the proxy does not listen."""
    [sandbox] = [name for name in machine.engine.containers() if name.startswith("aw-")]
    command = ["docker", "--host", machine.engine.host, "exec", sandbox, "python3", "-c", TUNNEL, target]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def environment_of(machine: Machine) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("AW_")}
    files = {"ENV_FILE": str(machine.folder / "env"), "PASSWORD_FILE": str(machine.folder / "password")}
    return own | files | images_of(machine) | {"DOCKER_HOST": machine.engine.host}


def images_of(machine: Machine) -> dict[str, str]:
    backends = {"POSTGRES_IMAGE": BACKENDS_IMAGE, "VALKEY_IMAGE": BACKENDS_IMAGE}
    return backends | {"IMAGE": SERVICE_IMAGE, "ENGINE_SOCKET": machine.socket}


def settings_of(machine: Machine) -> str:
    return "\n".join(
        [
            f"AW_DATABASE_URL=postgresql://workspace:{PASSWORD}@{machine.address}/workspace",
            f"AW_REDIS_URL=redis://:{PASSWORD}@{machine.address}:6379/0",
            f"AW_SECRET_KEYS={new_secret_key()}",
            f"AW_HOST={machine.address}",
            f"AW_SANDBOX_API_URL=http://{machine.address}:3000",
            "AW_SANDBOX_DNS=none",
        ]
    )


def run_compose(transcript: Transcript, environment: Mapping[str, str], *words: str) -> str:
    return transcript.run(f"$ docker-compose {' '.join(words)}", [*COMPOSE, *words], environment=environment)


def health_of(machine: Machine, name: str) -> list[str]:
    ids = machine.engine.docker("ps", "-q", "--filter", f"name={name}").split()
    return machine.engine.docker("inspect", "--format", "{{.State.Health.Status}}", *ids).split() if ids else []


def capabilities(machine: Machine) -> dict[str, list[str]]:
    """The added capabilities of the service's containers, by their names."""
    ids = machine.engine.docker("ps", "-q").split()
    form = "{{.Name}} {{range .HostConfig.CapAdd}}{{.}} {{end}}"
    rows = [line.split() for line in machine.engine.docker("inspect", "--format", form, *ids).splitlines()]
    return {name.strip("/"): sorted(added) for name, *added in rows if added and name.startswith("/aw_")}


def is_cleared(machine: Machine) -> bool:
    """Whether Swarm has stopped its containers on a machine."""
    return not [name for name in machine.engine.containers() if name.startswith("agent-workspace_")]


def web_of(machine: Machine) -> str:
    """The id of an API process's container."""
    return machine.engine.docker("ps", "-q", "--filter", "name=agent-workspace_web").split()[0]


def is_ready(machine: Machine, node: str) -> bool:
    found = machine.engine.docker("ps", "-q", "--filter", "name=agent-workspace_web").split()
    command = ["docker", "--host", machine.engine.host, "exec", *found[:1], "agent-workspace", "nodes", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout if found else ""
    return any(row.split()[:2] == [node, "READY"] for row in listed.splitlines())
