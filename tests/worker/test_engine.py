"""The engine's contract, on the real engine with the tiny image and on the fake that stands in for it elsewhere."""

import gc
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from docker import APIClient

from shared.ids import new_id
from tests.fakes.engine import FakeEngine
from tests.services.engine import ENGINE, TINY_IMAGE, docker_engine, name_installation
from tests.waiting import eventually
from worker import own_doings
from worker.containers import ContainerRequest, ContainerState, Engine, EngineRefused, EngineUnavailable, ImageMissing
from worker.engine import EVENTS, INSTALLATION_LABEL, SANDBOX_LABEL, DockerEngine
from worker.sandbox_container import CONFIG_ENV, CONFIG_PATH


@pytest.fixture
def installation() -> str:
    return name_installation()


@pytest.fixture(params=["fake", "docker"])
def engine(request: pytest.FixtureRequest, installation: str) -> Iterator[Engine]:
    if request.param == "fake":
        fake = FakeEngine()
        fake.images = {TINY_IMAGE}
        yield fake
    else:
        with docker_engine(installation) as engine:
            yield engine


@pytest.fixture
def request_(installation: str) -> ContainerRequest:
    sandbox_id = new_id()
    return ContainerRequest(
        name=f"aw-{sandbox_id}",
        image=TINY_IMAGE,
        command=["--host", "0.0.0.0", "--port", "8000"],
        env={CONFIG_ENV: CONFIG_PATH},
        labels={INSTALLATION_LABEL: installation, SANDBOX_LABEL: sandbox_id},
        working_dir="/workspace",
        ports=[8000],
        address="127.0.0.1",
        memory_bytes=64 * 1024**2,
        cpus=1.0,
        pids=64,
        capabilities=[],
        runtime=None,
    )


CONFIG = b'{"session_api_keys": ["k"], "secret_key": "s"}'


def started(engine: Engine, request: ContainerRequest) -> str:
    engine.create(request)
    engine.put_file(request.name, CONFIG_PATH, CONFIG)
    engine.start(request.name)
    return request.name


def told_by_the_engine(installation: str, since: int) -> Counter[str]:
    """How often each container changed, by the engine's memory: one that is thawed at once it may call frozen again."""
    filters = {"type": ["container"], "event": EVENTS, "label": [f"{INSTALLATION_LABEL}={installation}"]}
    with closing(APIClient(ENGINE)) as client:
        events = client.events(since=since, until=int(time.time()) + 1, filters=filters, decode=True)
        return Counter(event["Actor"]["Attributes"]["name"] for event in events)


def state(engine: Engine, name: str) -> ContainerState:
    return engine.observe(name).state


def test_has_an_id(engine: Engine) -> None:
    assert engine.read_id()
    assert engine.read_id() == engine.read_id()


def test_life_of_a_container(engine: Engine, request_: ContainerRequest) -> None:
    name = request_.name
    assert state(engine, name) == ContainerState.ABSENT
    engine.create(request_)
    assert state(engine, name) == ContainerState.CREATED
    started(engine, request_)
    running = engine.observe(name)
    assert running.state == ContainerState.RUNNING
    assert set(running.ports) == {8000}
    engine.freeze(name)
    assert state(engine, name) == ContainerState.FROZEN
    engine.unfreeze(name)
    assert state(engine, name) == ContainerState.RUNNING
    engine.stop(name, 1)
    assert state(engine, name) == ContainerState.EXITED
    engine.start(name)
    assert state(engine, name) == ContainerState.RUNNING
    engine.remove(name)
    gone = engine.observe(name)
    assert (gone.state, gone.leftovers) == (ContainerState.ABSENT, False)


def test_done_twice_is_done_once(engine: Engine, request_: ContainerRequest, installation: str) -> None:
    name = started(engine, request_)
    before = engine.observe(name)
    engine.create(request_)
    engine.start(name)
    assert engine.observe(name).ports == before.ports
    engine.freeze(name)
    engine.freeze(name)
    engine.unfreeze(name)
    engine.unfreeze(name)
    engine.stop(name, 1)
    engine.stop(name, 1)
    engine.remove(name)
    engine.remove(name)
    assert engine.list_containers(installation) == []
    assert engine.list_volumes(installation) == []


def test_what_is_not_there_is_no_error_to_undo(engine: Engine, request_: ContainerRequest) -> None:
    name = request_.name
    engine.unfreeze(name)
    engine.stop(name, 1)
    engine.discard(name)
    engine.remove(name)
    assert engine.read_log(name, 5) == ""


def test_what_is_not_there_can_not_be_written_to(engine: Engine, request_: ContainerRequest) -> None:
    with pytest.raises(EngineRefused):
        engine.put_file(request_.name, CONFIG_PATH, CONFIG)


def test_volume_outlives_a_discarded_container(engine: Engine, request_: ContainerRequest, installation: str) -> None:
    name = started(engine, request_)
    engine.discard(name)
    left = engine.observe(name)
    assert (left.state, left.leftovers) == (ContainerState.ABSENT, True)
    assert engine.list_volumes(installation) == [name]


def test_image_that_is_not_there(engine: Engine, request_: ContainerRequest) -> None:
    missing = ContainerRequest(**{**vars(request_), "image": "agent-workspace/no-such-image:1"})
    with pytest.raises(ImageMissing):
        engine.create(missing)
    with pytest.raises(ImageMissing):
        engine.pull(missing.image)


def test_lists_only_its_own_installation(engine: Engine, request_: ContainerRequest, installation: str) -> None:
    name = started(engine, request_)
    assert [(item.name, item.state) for item in engine.list_containers(installation)] == [
        (name, ContainerState.RUNNING)
    ]
    assert engine.list_containers("another") == []


class TestDockerAlone:
    """What only the real engine can show."""

    @pytest.fixture
    def docker(self, installation: str) -> Iterator[DockerEngine]:
        with docker_engine(installation) as engine:
            yield engine

    def test_container_of_that_name_that_is_not_ours_is_replaced(
        self, docker: DockerEngine, request_: ContainerRequest, installation: str
    ) -> None:
        foreign = {INSTALLATION_LABEL: installation, SANDBOX_LABEL: "another"}
        docker.create(ContainerRequest(**{**vars(request_), "labels": foreign}))
        docker.create(request_)
        assert docker.observe(request_.name).labels[SANDBOX_LABEL] == request_.labels[SANDBOX_LABEL]

    def test_least_privilege(self, docker: DockerEngine, request_: ContainerRequest) -> None:
        name = started(docker, request_)
        found = docker._api().inspect_container(name)
        host = found["HostConfig"]
        assert host["CapDrop"] == ["ALL"]
        assert not host["CapAdd"]
        assert host["SecurityOpt"] == ["no-new-privileges:true"]
        assert (host["Memory"], host["MemorySwap"]) == (request_.memory_bytes, request_.memory_bytes)
        assert (host["NanoCpus"], host["PidsLimit"], host["Init"]) == (10**9, 64, True)
        assert (host["Privileged"], host["PidMode"], host["IpcMode"]) == (False, "", "private")
        assert host["NetworkMode"] != "host"
        assert host["LogConfig"]["Config"] == {"max-size": "10m", "max-file": "3"}
        assert [mount["Type"] for mount in found["Mounts"]] == ["volume"]
        published = found["NetworkSettings"]["Ports"]["8000/tcp"]
        assert [port["HostIp"] for port in published] == ["127.0.0.1"]

    def test_log_of_a_container_that_ended(self, docker: DockerEngine, request_: ContainerRequest) -> None:
        ends = ContainerRequest(**{**vars(request_), "env": {"TINY_EXIT_CODE": "3"}})
        name = started(docker, ends)
        eventually(lambda: docker.observe(name).state == ContainerState.EXITED)
        assert docker.observe(name).exit_code == 3
        assert docker.read_log(name, 30).strip()

    def test_follows_changes_behind_our_back(
        self,
        docker: DockerEngine,
        request_: ContainerRequest,
        installation: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(own_doings, "ECHO_SECONDS", 60.0)  # however late the engine tells of it
        began, seen = int(time.time()), list[str]()
        changes = docker.follow(installation)
        follower = threading.Thread(target=lambda: seen.extend(changes))
        follower.start()
        first, second, last = (replace(request_, name=f"aw-{new_id()}") for _ in range(3))
        with docker_engine(installation) as another:
            started(another, first)
            docker.unfreeze(first.name)  # nothing happens, and so nothing is expected
            docker.freeze(first.name)
            another.unfreeze(first.name)
            started(another, second)
            another.freeze(second.name)
            docker.unfreeze(second.name)
            another.stop(first.name, 0)
            started(another, last)
            # Events come in order: had more been told, it would be there by then.
            eventually(lambda: last.name in seen)
            ours = Counter([first.name, second.name])
            assert Counter(seen) == told_by_the_engine(installation, began) - ours
        assert seen[0] == first.name
        docker.close()
        follower.join(10)
        assert not follower.is_alive()

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_engine_that_does_not_answer(self) -> None:
        with pytest.raises(EngineUnavailable):
            DockerEngine("unix:///nowhere/docker.sock").read_id()
        gc.collect()  # docker's own client leaves the socket that could not be connected
