"""Tests that need the real engine, in addition to the contract in `tests/worker/engine/contract`."""

import gc
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from docker import APIClient

from shared.ids import new_id
from tests.fixtures.containers import started
from tests.services.engine import docker_engine
from tests.services.engine_address import ENGINE
from tests.waiting import eventually
from worker.engine import own_events
from worker.engine.confinement import SECCOMP
from worker.engine.disk_engine import DiskEngine
from worker.engine.docker_engine import EVENTS, INSTALLATION_LABEL, SANDBOX_LABEL, DockerEngine
from worker.engine.protocol import ContainerRequest, ContainerState, EngineUnavailable
from worker.sandboxes.container_spec import CONFIG_PATH


@pytest.fixture
def docker(installation: str) -> Iterator[DiskEngine]:
    with docker_engine(installation) as engine:
        yield engine


def test_container_has_the_least_privileges(docker: DiskEngine, request_: ContainerRequest) -> None:
    name = started(docker, request_)
    with docker._clients.acquire(5) as api:
        found = api.inspect_container(name)
    host = found["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert host["SecurityOpt"] == ["no-new-privileges:true", f"seccomp={SECCOMP}"]
    assert host["ReadonlyRootfs"], "the image's label says that it works so"
    assert sum(int(options.split("size=")[1].split(",")[0]) for options in host["Tmpfs"].values()) < host["Memory"]
    assert {limit["Name"]: limit["Hard"] for limit in host["Ulimits"]} == {"nofile": 16384, "core": 0}
    assert (host["Memory"], host["MemorySwap"]) == (request_.memory_bytes, request_.memory_bytes)
    assert (host["NanoCpus"], host["PidsLimit"], host["Init"]) == (10**9, 64, True)
    assert (host["Privileged"], host["PidMode"], host["IpcMode"]) == (False, "", "private")
    assert host["NetworkMode"] != "host"
    assert host["LogConfig"]["Config"] == {"max-size": "10m", "max-file": "3"}
    assert [mount["Type"] for mount in found["Mounts"]] == ["volume"]
    assert not host["PortBindings"]


# What an agent, which owns the folder, leaves in the place of its agent server's configuration.
IN_ITS_PLACE = {
    "a folder": "mkdir -p $path/a/b && touch $path/a/b/c",
    "a link to a file": "ln -s ../workspace/kept $path",
    "a link to a file of the root": "ln -s /etc/passwd $path",
    "a link to a folder": "ln -s /workspace/folder $path",
    "a link to the machine's root": "ln -s ../../../../../../etc $path",
    "a second name of a file": "ln /workspace/kept $path",
    "a link to nothing": "ln -s /nowhere/file $path",
    "a pipe": "mkfifo $path",
    "folders in each other": "mkdir $path && cd $path && for _ in $(seq 2000); do mkdir d && cd d || exit; done",
}


def test_uploaded_file_replaces_anything_at_its_path(docker: DiskEngine, request_: ContainerRequest) -> None:
    name = started(docker, request_)
    prepare = "mkdir -p /workspace/folder && printf kept >/workspace/kept"
    run(name, prepare)
    for what, script in IN_ITS_PLACE.items():
        run(name, f"path={CONFIG_PATH}; rm -rf $path && {script}")
        docker.stop(name, 0)
        docker.put_file(name, CONFIG_PATH, content := f"written over {what}".encode())
        docker.start(name)
        assert run(name, f"cat {CONFIG_PATH}") == content.decode(), what
        assert (
            run(
                name,
                "cat /workspace/kept; ls /workspace/folder; find / -xdev -path /proc -prune -o -name nowhere -print",
            )
            == "kept"
        ), what
        assert "written over" not in run(name, "cat /etc/passwd")
    docker.remove(name)


def test_renamed_container_gets_its_name_back(docker: DiskEngine, request_: ContainerRequest) -> None:
    name = started(docker, request_)
    with docker._clients.acquire(5) as api:
        api.rename(name, f"renamed-{name}")
        assert docker.observe(name).state == ContainerState.RUNNING
        assert api.inspect_container(name)["Name"] == f"/{name}"
        api.rename(name, f"renamed-{name}")
    docker.observe(name)
    docker.remove(name)
    found = docker.observe(name)
    assert (found.state, found.has_volume) == (ContainerState.ABSENT, False)


def test_swapped_names_lead_to_no_other_sandbox_s_container(docker: DiskEngine, request_: ContainerRequest) -> None:
    names = started(docker, request_), started(docker, for_another_sandbox(request_))
    ids = [docker.observe(name).container_id for name in names]
    with docker._clients.acquire(5) as api:
        for container, name in zip((ids[0], ids[1], ids[0]), ("swapped", *names), strict=True):
            api.rename(container, name)
    assert [docker.observe(name).container_id for name in names] == ids
    docker.remove(names[0])
    assert [docker.observe(name).state for name in names] == [ContainerState.ABSENT, ContainerState.RUNNING]


def for_another_sandbox(request: ContainerRequest) -> ContainerRequest:
    sandbox_id = new_id()
    return replace(request, name=f"aw-{sandbox_id}", labels=request.labels | {SANDBOX_LABEL: sandbox_id})


def test_log_of_an_exited_container_is_read(docker: DiskEngine, request_: ContainerRequest) -> None:
    ends = ContainerRequest(**{**vars(request_), "env": {"TINY_EXIT_CODE": "3"}})
    name = started(docker, ends)
    eventually(lambda: docker.observe(name).state == ContainerState.EXITED)
    assert docker.observe(name).exit_code == 3
    assert docker.read_log(name).lines


def test_follow_reports_outside_changes(
    docker: DiskEngine,
    request_: ContainerRequest,
    installation: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own_events, "ECHO_SECONDS", 60.0)  # even if the engine's events are late
    began, reported = int(time.time()), list[str]()
    changes = docker.follow(installation)
    follower = threading.Thread(target=lambda: reported.extend(changes))
    follower.start()
    first, second, last = (for_another_sandbox(request_) for _ in range(3))
    with docker_engine(installation) as another:
        started(another, first)
        docker.unpause(first.name)  # has no effect, so no event is expected
        docker.pause(first.name)
        another.unpause(first.name)
        started(another, second)
        another.pause(second.name)
        docker.unpause(second.name)
        another.stop(first.name, 0)
        started(another, last)
        # Events arrive in order: all earlier ones have arrived with the last.
        eventually(lambda: last.name in reported)
        own = Counter([first.name, second.name])
        assert Counter(reported) == count_events(installation, began) - own
    assert reported[0] == first.name
    docker.close()
    follower.join(10)
    assert not follower.is_alive()


def test_out_of_memory_kills_of_programs_are_not_reported_as_changes(
    docker: DiskEngine, request_: ContainerRequest, installation: str
) -> None:
    """Otherwise a sandbox could make its node check it any number of times."""
    began = int(time.time())
    name = started(docker, request_)
    exit_codes = run(name, "for _ in 1 2 3; do dd if=/dev/zero of=/dev/null bs=200M count=1; echo $?; done")
    assert exit_codes.split() == ["137"] * 3
    assert docker.observe(name).state == ContainerState.RUNNING
    assert count_events(installation, began) == {name: 1}, "only its start"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_engine_that_does_not_respond_is_unavailable() -> None:
    with pytest.raises(EngineUnavailable):
        DockerEngine("unix:///nowhere/docker.sock").read_id()
    gc.collect()  # Docker's client does not close the socket after a failed connect


def run(name: str, script: str) -> str:
    """The output of a shell in the container."""
    command = ["docker", "exec", name, "sh", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def count_events(installation: str, since: int) -> Counter[str]:
    """Count the engine's stored events by container: a pause before an immediate unpause may cause two pause events."""
    filters = {"type": ["container"], "event": EVENTS, "label": [f"{INSTALLATION_LABEL}={installation}"]}
    with closing(APIClient(ENGINE)) as client:
        events = client.events(since=since, until=int(time.time()) + 1, filters=filters, decode=True)
        return Counter(event["Actor"]["Attributes"]["name"] for event in events)
