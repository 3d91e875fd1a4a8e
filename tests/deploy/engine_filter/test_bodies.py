"""The additions to a request's body that an operator's settings and the service's networks permit."""

import getpass
import json
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.engine_filter.bodies import Policy, RequestRefused, container_body, network_body
from shared.db.database import Database
from shared.db.migrations import migrate
from shared.nodes import registry as node_registry
from shared.settings import Settings
from tests.services import processes
from tests.services.directories import REPOSITORY
from tests.services.engine_socket import EngineSocket
from tests.waiting import eventually
from tests.worker.engine.scripted_engine import running_scripted_engine, whole
from worker.engine.confinement import SECCOMP
from worker.engine.docker_client import network_data
from worker.engine.docker_engine import INSTALLATION_LABEL
from worker.engine.protocol import NetworkRequest
from worker.network.addresses import make_bridge, network_name

POLICY = Policy(
    "own",
    capabilities=frozenset({"CHOWN"}),
    runtimes=frozenset({"runsc"}),
)
LABELS = {INSTALLATION_LABEL: "own"}
BODY: dict[str, Any] = {
    "Image": "image",
    "Labels": LABELS,
    "HostConfig": {
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges:true", f"seccomp={SECCOMP}"],
        "Memory": 1,
        "MemorySwap": 1,
        "NanoCpus": 1,
        "PidsLimit": 1,
    },
}
REORDERED = json.dumps(dict(reversed(json.loads(SECCOMP).items())), indent=1)
LOOSER = json.dumps(json.loads(SECCOMP) | {"defaultAction": "SCMP_ACT_ALLOW"})


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
        ({"SecurityOpt": ["no-new-privileges", f"seccomp={REORDERED}"]}, {"SecurityOpt": [f"seccomp={SECCOMP}"]}),
        ({}, {"SecurityOpt": ["no-new-privileges", "seccomp={}"]}),
        ({}, {"SecurityOpt": ["no-new-privileges", f"seccomp={LOOSER}"]}),
        ({}, {"SecurityOpt": ["no-new-privileges"]}),
        ({"Tmpfs": {"/tmp": "rw,exec,mode=1777,size=64m"}}, {"Tmpfs": {"/tmp": "rw,uid=0:0"}}),
        ({"NetworkMode": "bridge"}, {"NetworkMode": "host"}),
        ({"NetworkMode": "none"}, {"NetworkMode": "agent-workspace-own"}),
        ({"Dns": ["9.9.9.9"]}, {"Dns": ["resolver"]}),
        ({"ReadonlyRootfs": True}, {"ReadonlyRootfs": "yes"}),
        ({"Mounts": [{"Type": "volume", "Source": "aw-1", "Target": "/workspace"}]}, {"Mounts": [{"Type": "npipe"}]}),
        ({"Privileged": False, "Devices": [], "PidMode": ""}, {"Memory": None}),
    ],
)
def test_host_config_is_limited_to_the_policy(allowed: dict[str, Any], refused: dict[str, Any]) -> None:
    body = container_body(with_host(**allowed), "aw-1", POLICY)
    assert body["HostConfig"] == BODY["HostConfig"] | {name: value for name, value in allowed.items() if value}
    with pytest.raises(RequestRefused, match=r"HostConfig"):
        container_body(with_host(**refused), "aw-1", POLICY)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{", b"[" * 100_000, b'{"Image": "i"}', b'{"Image": "i", "HostConfig": []}']
)
def test_malformed_body_is_refused(text: bytes) -> None:
    with pytest.raises(RequestRefused):
        container_body(text, "aw-1", POLICY)


ON_NETWORK = replace(POLICY, network=NetworkRequest("agent-workspace-1", "br-aw1", "10.9.0.0/24", "10.9.0.1", LABELS))


def test_network_of_the_worker_is_created() -> None:
    assert ON_NETWORK.network is not None
    body = network_data(ON_NETWORK.network)
    assert network_body(json.dumps(body | {"EnableIPv6": False}).encode(), ON_NETWORK) == body
    with pytest.raises(RequestRefused):
        network_body(json.dumps(body).encode(), POLICY)


@pytest.mark.parametrize(
    "change",
    [
        {"Name": "agent-workspace-2"},
        {"Driver": "macvlan"},
        {"EnableIPv6": True},
        {"Internal": True},
        {"Labels": {}},
        {"Options": {}},
        {"Options": {"com.docker.network.bridge.name": "docker0", "com.docker.network.bridge.enable_icc": "false"}},
        {"IPAM": {"Driver": "default", "Config": [{"Subnet": "192.168.1.0/24", "Gateway": "192.168.1.1"}]}},
        {"ipam": {"Driver": "default", "Config": [{"Subnet": "192.168.1.0/24"}]}},
    ],
)
def test_creation_of_other_networks_is_refused(change: dict[str, Any]) -> None:
    assert ON_NETWORK.network is not None
    with pytest.raises(RequestRefused):
        network_body(json.dumps(network_data(ON_NETWORK.network) | change).encode(), ON_NETWORK)


@pytest.mark.parametrize(
    ("mode", "is_allowed"),
    [("agent-workspace-1", True), ("none", True), ("bridge", False), ("default", False), ("", False)],
)
def test_container_on_another_network_is_refused(mode: str, is_allowed: bool) -> None:
    text = with_host(NetworkMode=mode)
    if is_allowed:
        assert container_body(text, "aw-1", ON_NETWORK)["HostConfig"]["NetworkMode"] == mode
    else:
        with pytest.raises(RequestRefused, match="NetworkMode"):
            container_body(text, "aw-1", ON_NETWORK)


def test_container_with_a_chosen_address_is_refused() -> None:
    body = json.loads(with_host(NetworkMode="agent-workspace-1"))
    body["NetworkingConfig"] = {"EndpointsConfig": {"agent-workspace-1": {"IPAMConfig": {"IPv4Address": "10.9.0.7"}}}}
    with pytest.raises(RequestRefused, match="NetworkingConfig"):
        container_body(json.dumps(body).encode(), "aw-1", ON_NETWORK)


def test_filter_takes_its_policy_from_database_and_settings(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'db'}"
    migrate(url)
    with Database(url).transaction() as session:
        installation = node_registry.installation_id(session)
    with running_scripted_engine() as engine:
        bridge = make_bridge(Settings(), installation, "node")
        engine.responses["/create"] = whole(b'{"Id":"1"}', 201)
        socket = tmp_path / "engine.sock"
        settings = {
            "AW_DATABASE_URL": url,
            "AW_DOCKER_HOST": engine.host,
            "AW_NODE": "node",
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
                body["HostConfig"] |= {"CapAdd": [capability], "NetworkMode": network_name(bridge)}
                assert client.send("POST", "/containers/create?name=aw-1", body).status == status
            process.terminate()
            assert process.wait(10) == 0  # by its own signal handler: process 1 of a container has no default one
        finally:
            processes.stop(process)
    assert "engine_request_refused" in (tmp_path / "log").read_text()
