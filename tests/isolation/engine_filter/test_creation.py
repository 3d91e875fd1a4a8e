"""A worker creates no container, volume or network with more privileges than a sandbox.

Each refused request is repeated at the engine's own socket, which executes it.
"""

import pytest

from tests.isolation.engine_filter.testbed import OTHER, OWN, Body, Worker, assert_refused, create, name_container
from worker.engine.confinement import SECCOMP
from worker.engine.docker_engine import INSTALLATION_LABEL

HOST_CONFIGS: dict[str, Body] = {
    "privileged": {"Privileged": True},
    "the host's files": {"Binds": ["/:/workspace"]},
    "the engine's socket": {"Binds": ["/var/run/docker.sock:/workspace/docker.sock"]},
    "another volume": {"Binds": ["aw-another:/workspace:rw"]},
    "a volume at another place": {"Binds": ["aw-another:/etc"]},
    "a bind as a mount": {"Mounts": [{"Type": "bind", "Source": "/", "Target": "/host"}]},
    "a volume of driver options as a mount": {
        "Mounts": [
            {
                "Type": "volume",
                "Target": "/host",
                "VolumeOptions": {
                    "DriverConfig": {"Name": "local", "Options": {"type": "none", "o": "bind", "device": "/"}}
                },
            }
        ]
    },
    "the host's network": {"NetworkMode": "host", "PortBindings": {}},
    "the host's processes": {"PidMode": "host"},
    "the host's memory": {"IpcMode": "host"},
    "the host's name": {"UTSMode": "host"},
    "the host's users": {"UsernsMode": "host"},
    "the host's control groups": {"CgroupnsMode": "host"},
    "a parent of control groups": {"CgroupParent": "/"},
    "a capability": {"CapAdd": ["SYS_ADMIN"]},
    "default capabilities": {"CapDrop": []},
    "a device": {"Devices": [{"PathOnHost": "/dev/null", "PathInContainer": "/dev/x", "CgroupPermissions": "rwm"}]},
    "all devices": {"DeviceCgroupRules": ["a *:* rwm"]},
    "no seccomp": {"SecurityOpt": ["no-new-privileges:true", "seccomp=unconfined"]},
    "a seccomp profile of its own": {
        "SecurityOpt": ["no-new-privileges", 'seccomp={"defaultAction":"SCMP_ACT_ALLOW"}']
    },
    "the engine's own seccomp profile": {"SecurityOpt": ["no-new-privileges:true"]},
    "no AppArmor": {"SecurityOpt": ["no-new-privileges:true", "apparmor=unconfined"]},
    "new privileges": {"SecurityOpt": []},
    "another runtime": {"Runtime": "runc"},
    "a port on all addresses": {"PortBindings": {"8000/tcp": [{"HostIp": "0.0.0.0", "HostPort": ""}]}},
    "a port of its choice": {"PortBindings": {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "40001"}]}},
    "kernel settings": {"Sysctls": {"net.ipv4.ip_forward": "1"}},
    "processes without limit": {"PidsLimit": -1},
    "memory without limit": {"Memory": 0, "MemorySwap": 0},
    "processors without limit": {"NanoCpus": 0},
    "survival of the killer": {"OomScoreAdj": -1000},
    "logs without limit": {"LogConfig": {"Type": "json-file", "Config": {}}},
    "logs to another host": {"LogConfig": {"Type": "syslog", "Config": {"syslog-address": "udp://127.0.0.1:514"}}},
    "groups of the host": {"GroupAdd": ["0"]},
    "restarts without end": {"RestartPolicy": {"Name": "always"}},
}


def test_container_of_a_sandbox_is_created(worker: Worker) -> None:
    name = name_container()
    assert worker.filtered.send("POST", f"/containers/create?name={name}", worker.body(name)).status == 201
    assert worker.filtered.send("POST", f"/containers/{name}/start").status == 204
    assert worker.filtered.send("GET", f"/containers/{name}/json").read()["State"]["Running"]


@pytest.mark.parametrize("attack", HOST_CONFIGS)
def test_container_with_more_than_a_sandbox_s_rights_is_refused(worker: Worker, attack: str) -> None:
    name = name_container()
    body = worker.body(name)
    body["HostConfig"] |= HOST_CONFIGS[attack]
    assert_refused(worker, "POST", f"/containers/create?name={name}", body, control=201)


def test_files_of_another_container_are_refused(worker: Worker) -> None:
    victim, name = name_container(), name_container()
    create(worker, victim, OTHER)
    body = worker.body(name)
    body["HostConfig"]["VolumesFrom"] = [victim]
    assert_refused(worker, "POST", f"/containers/create?name={name}", body, control=201)


@pytest.mark.parametrize("mode", ["NetworkMode", "PidMode", "IpcMode"])
def test_namespace_of_another_container_is_refused(worker: Worker, mode: str) -> None:
    victim, name = name_container(), name_container()
    create(worker, victim, OTHER)
    body = worker.body(name)
    body["HostConfig"] |= {mode: f"container:{victim}", "PortBindings": {}}
    if mode == "NetworkMode":
        del body["ExposedPorts"]
    assert_refused(worker, "POST", f"/containers/create?name={name}", body, control=201)


def test_volume_of_another_installation_is_refused(worker: Worker) -> None:
    name = name_container()
    volume = {"Name": name, "Labels": {INSTALLATION_LABEL: OTHER}}
    assert worker.straight.send("POST", "/volumes/create", volume).status == 201
    assert_refused(worker, "POST", f"/containers/create?name={name}", worker.body(name), control=201)


@pytest.mark.parametrize("labels", [{}, {INSTALLATION_LABEL: OTHER}])
def test_container_without_the_installation_s_label_is_refused(worker: Worker, labels: dict[str, str]) -> None:
    name = name_container()
    body = worker.body(name) | {"Labels": labels}
    assert_refused(worker, "POST", f"/containers/create?name={name}", body, control=201)


def test_name_of_another_program_is_refused(worker: Worker) -> None:
    body = worker.body("database")
    assert_refused(worker, "POST", "/containers/create?name=database", body, control=201)
    assert worker.filtered.send("POST", "/containers/create", body).status == 403


def test_field_in_another_letter_case_is_not_forwarded(worker: Worker) -> None:
    """The engine ignores the case of field names, so an empty field in another case may reset the right one."""
    for more in ({"hostconfig": {"Privileged": True}}, {"hostConfig": None}):
        name = name_container()
        worker.filtered.send("POST", f"/containers/create?name={name}", worker.body(name) | more)
        assert_confined(worker, name)
    name = name_container()
    body = worker.body(name)
    body["HostConfig"] |= {"MaskedPaths": [], "ReadonlyPaths": [], "capdrop": [], "securityopt": None}
    assert worker.filtered.send("POST", f"/containers/create?name={name}", body).status == 201
    assert_confined(worker, name)


def assert_confined(worker: Worker, name: str) -> None:
    """Assert that the container does not exist, or has only a sandbox's privileges."""
    found = worker.straight.send("GET", f"/containers/{name}/json")
    if found.status == 404:
        return
    host = found.read()["HostConfig"]
    assert (host["Privileged"], host["CapDrop"]) == (False, ["ALL"])
    assert host["SecurityOpt"] == ["no-new-privileges:true", f"seccomp={SECCOMP}"]
    assert host["MaskedPaths"]
    assert host["ReadonlyPaths"]


HOST_FOLDER = {"type": "none", "o": "bind", "device": "/"}
OBJECTS: dict[str, tuple[str, Body]] = {
    "a volume that is the host's disk": ("/volumes/create", {"Driver": "local", "DriverOpts": HOST_FOLDER}),
    "a network on a bridge of the host": (
        "/networks/create",
        {"Driver": "bridge", "Options": {"com.docker.network.bridge.name": "lan0"}},
    ),
    "a network with the host's traffic": (
        "/networks/create",
        {"Driver": "bridge", "IPAM": {"Config": [{"Subnet": "198.51.100.0/24"}]}},
    ),
    "a network of another driver": ("/networks/create", {"Driver": "macvlan"}),
}


@pytest.mark.parametrize("attack", OBJECTS)
def test_volume_or_network_of_the_host_is_refused(worker: Worker, attack: str) -> None:
    path, fields = OBJECTS[attack]
    body = fields | {"Name": name_container(), "Labels": {INSTALLATION_LABEL: OWN}}
    # Create no network, not even as a control, because the test's engine has no firewall and bridges' names belong to
    # the whole machine. The filter forwards a sandbox's kind of network, so a refusal is due to the body.
    assert worker.filtered.send("POST", path, body).status == 403
    if path == "/volumes/create":
        assert worker.straight.send("POST", path, body).status == 201
