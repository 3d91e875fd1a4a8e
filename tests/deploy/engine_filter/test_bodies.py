"""What an operator's settings, and this service's networks, may add to the body of a request."""

import getpass
import json
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from deploy.engine_filter.bodies import Policy, Refused, container_body, network_body
from shared.db.database import Database
from shared.db.migrations import migrate
from shared.nodes import registry as node_registry
from tests.services import processes
from tests.services.directories import REPOSITORY
from tests.services.engine_socket import EngineSocket
from tests.waiting import eventually
from tests.worker.engine.scripted_engine import running_scripted_engine, whole
from worker.engine.docker_engine import INSTALLATION_LABEL

PROFILE = {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW"}]}
POLICY = Policy(
    "own",
    capabilities=frozenset({"CHOWN"}),
    runtimes=frozenset({"runsc"}),
    seccomp=[PROFILE],
)
LABELS = {INSTALLATION_LABEL: "own"}
BODY: dict[str, Any] = {
    "Image": "image",
    "Labels": LABELS,
    "HostConfig": {
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges:true"],
        "Memory": 1,
        "MemorySwap": 1,
        "NanoCpus": 1,
        "PidsLimit": 1,
    },
}
SECCOMP = json.dumps(dict(reversed(PROFILE.items())))


def with_host(**fields: Any) -> bytes:
    body = deepcopy(BODY)
    body["HostConfig"] |= fields
    return json.dumps(body).encode()


@pytest.mark.parametrize(
    ("allowed", "refused"),
    [
        ({"CapAdd": ["CHOWN"]}, {"CapAdd": ["CHOWN", "SYS_ADMIN"]}),
        ({"CapAdd": ["CAP_CHOWN"]}, {"CapAdd": "CHOWN"}),
        ({"Runtime": "runsc"}, {"Runtime": "runc"}),
        ({"SecurityOpt": ["no-new-privileges", f"seccomp={SECCOMP}"]}, {"SecurityOpt": [f"seccomp={SECCOMP}"]}),
        ({}, {"SecurityOpt": ["no-new-privileges", "seccomp={}"]}),
        ({"Tmpfs": {"/tmp": "rw,exec,mode=1777,size=64m"}}, {"Tmpfs": {"/tmp": "rw,uid=0:0"}}),
        ({"NetworkMode": "agent-workspace-own"}, {"NetworkMode": "host"}),
        ({"Dns": ["9.9.9.9"]}, {"Dns": ["resolver"]}),
        ({"ReadonlyRootfs": True}, {"ReadonlyRootfs": "yes"}),
        ({"Mounts": [{"Type": "volume", "Source": "aw-1", "Target": "/workspace"}]}, {"Mounts": [{"Type": "npipe"}]}),
        ({"Privileged": False, "Devices": [], "PidMode": ""}, {"Memory": None}),
    ],
)
def test_host_config_has_what_the_policy_allows(allowed: dict[str, Any], refused: dict[str, Any]) -> None:
    body = container_body(with_host(**allowed), "aw-1", POLICY)
    assert body["HostConfig"] == BODY["HostConfig"] | {name: value for name, value in allowed.items() if value}
    with pytest.raises(Refused, match=r"HostConfig"):
        container_body(with_host(**refused), "aw-1", POLICY)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{", b"[" * 100_000, b'{"Image": "i"}', b'{"Image": "i", "HostConfig": []}']
)
def test_malformed_body_is_refused(text: bytes) -> None:
    with pytest.raises(Refused):
        container_body(text, "aw-1", POLICY)


@pytest.mark.parametrize(
    ("options", "is_allowed"),
    [
        ({"com.docker.network.bridge.name": "br-aw1234", "com.docker.network.bridge.enable_icc": "false"}, True),
        ({"com.docker.network.bridge.name": "docker0"}, False),
        ({"com.docker.network.bridge.name": "eth0"}, False),
        ({"parent": "eth0"}, False),
    ],
)
def test_network_has_a_bridge_of_its_own(options: dict[str, str], is_allowed: bool) -> None:
    body = {"Name": "agent-workspace-own", "Driver": "bridge", "Labels": LABELS, "Options": options}
    text = json.dumps(body).encode()
    if is_allowed:
        assert network_body(text, POLICY) == body
    else:
        with pytest.raises(Refused):
            network_body(text, POLICY)


def test_filter_takes_its_policy_from_database_and_settings(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'db'}"
    migrate(url)
    with Database(url).transaction() as session:
        installation = node_registry.installation_id(session)
    with running_scripted_engine() as engine:
        engine.answers["/create"] = whole(b'{"Id":"1"}', 201)
        socket = tmp_path / "engine.sock"
        settings = {
            "AW_DATABASE_URL": url,
            "AW_DOCKER_HOST": engine.host,
            "AW_ALLOWED_CAPABILITIES": "CHOWN, KILL",
            "PYTHONPATH": str(REPOSITORY),
        }
        environment = [f"{name}={value}" for name, value in settings.items()]
        command = [sys.executable, "-m", "deploy.engine_filter", str(socket), getpass.getuser()]
        process = processes.start(["env", *environment, *command], tmp_path / "log")
        try:
            eventually(lambda: process.poll() is not None or "filtering" in (tmp_path / "log").read_text())
            client = EngineSocket(f"unix://{socket}")
            for capability, status in {"KILL": 201, "SYS_ADMIN": 403}.items():
                body = deepcopy(BODY)
                body["Labels"] = {INSTALLATION_LABEL: installation}
                body["HostConfig"]["CapAdd"] = [capability]
                assert client.send("POST", "/containers/create?name=aw-1", body).status == status
        finally:
            processes.stop(process)
    assert "engine_request_refused" in (tmp_path / "log").read_text()
