"""Disks of sandboxes on a real engine: a limit of bytes and inodes, made and removed from every half-made state."""

import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.engine_filter.bodies import Policy
from tests.fixtures.containers import started, state
from tests.services.engine import docker_engine
from tests.services.engine_address import ENGINE
from tests.services.engine_socket import EngineSocket, running_engine_filter
from tests.services.faulty_engine import Failure, FailureMode, running_faulty_engine
from tests.services.machine_engine import MachineEngine
from worker.engine.disk_engine import DiskEngine
from worker.engine.disk_images import DEVICES, MIN_BYTES, DiskImages
from worker.engine.disks import ROUTE
from worker.engine.protocol import ContainerRequest, ContainerState, DiskKind, EngineRefused, EngineUnavailable
from worker.engine.requirements import find_disk_shortage, require_runtimes
from worker.sandboxes.container_spec import CONFIG_PATH

SIZE = 32 * 1024**2


@pytest.fixture
def disk_request(request_: ContainerRequest) -> ContainerRequest:
    return replace(request_, disk_bytes=SIZE, has_files=False)


@pytest.fixture(params=["own rights", "engine filter"])
def disks(request: pytest.FixtureRequest, installation: str) -> Iterator[DiskEngine]:
    with docker_engine(installation) as engine:
        if request.param == "own rights":
            yield engine
            return
        with running_engine_filter(ENGINE, Policy(installation, frozenset({"127.0.0.1"}))) as host:
            filtered = DiskEngine(host, installation)
            yield filtered
            filtered.close()


def images(engine: DiskEngine, installation: str) -> DiskImages:
    engine.read_id()
    return DiskImages(Path(engine.info["DockerRootDir"]), installation)


def inside(name: str, script: str) -> str:
    done = subprocess.run(["docker", "exec", name, "sh", "-c", script], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def loops(path: Path) -> list[str]:
    return subprocess.run(["losetup", "-j", str(path)], capture_output=True, text=True, check=True).stdout.splitlines()


def test_disk_ends_where_its_limit_is(disks: DiskEngine, disk_request: ContainerRequest, installation: str) -> None:
    assert disks.disk_kind() == DiskKind.IMAGE
    name = started(disks, disk_request)
    made = images(disks, installation)
    assert made.names() == [name]
    assert "No space left" in inside(name, f"dd if=/dev/zero of=/workspace/large bs=64k count={2 * SIZE // 65536}")
    assert "No space left" in inside(name, "rm /workspace/large; i=0; while >/workspace/f$i; do i=$((i+1)); done")
    disks.stop(name, 0)
    disks.put_file(name, CONFIG_PATH, b"in the inode and the reserve that are kept for it")
    disks.remove(name)
    assert (made.names(), loops(made.folder / f"{name}.img"), (DEVICES / name).is_symlink()) == ([], [], False)
    assert disks.list_volumes(installation) == []


def test_engine_that_fails_once_gets_a_second_request(installation: str) -> None:
    with (
        docker_engine(installation) as engine,
        running_faulty_engine(MachineEngine(ENGINE, "", "", engine)) as faulty,
        closing(DiskEngine(faulty.host, installation)) as disks,
    ):
        faulty.failure = Failure(FailureMode.FAIL, path=ROUTE.encode(), most=1)
        with pytest.raises(EngineUnavailable):
            disks.disk_kind()
        assert disks.disk_kind() == DiskKind.IMAGE


def test_plain_volume_has_no_disk_limit(disks: DiskEngine, request_: ContainerRequest) -> None:
    name = started(disks, request_)
    assert inside(name, f"head -c {2 * SIZE} /dev/zero >/workspace/large") == ""


def test_sandbox_keeps_its_plain_volume(
    disks: DiskEngine, disk_request: ContainerRequest, request_: ContainerRequest, installation: str
) -> None:
    disks.create(request_)
    disks.remove_container(request_.name)
    disks.create(replace(disk_request, has_files=True))
    assert images(disks, installation).names() == []


def test_files_outlive_a_container_and_a_reboot(
    disks: DiskEngine, disk_request: ContainerRequest, installation: str
) -> None:
    name = started(disks, disk_request)
    inside(name, "echo mine >/workspace/project/file")
    disks.remove_container(name)
    [loop] = loops(images(disks, installation).folder / f"{name}.img")
    subprocess.run(["losetup", "-d", loop.split(":")[0]], check=True)
    (DEVICES / name).unlink()
    assert started(disks, replace(disk_request, has_files=True, disk_bytes=0)) == name
    assert inside(name, "cat /workspace/project/file") == "mine\n"


def test_incomplete_disk_is_completed_or_removed(
    disks: DiskEngine, disk_request: ContainerRequest, installation: str
) -> None:
    name, made = disk_request.name, images(disks, installation)
    made.make(name, SIZE)  # and the worker died before it made the volume
    assert disks.list_volumes(installation) == [name]
    assert disks.observe(name).has_volume
    started(disks, disk_request)
    assert state(disks, name) == ContainerState.RUNNING
    disks.remove_container(name)
    made.remove(name)  # and the worker died before it removed the volume
    with pytest.raises(EngineRefused, match=r"disk image of .* is missing"):
        disks.create(replace(disk_request, has_files=True))
    disks.create(disk_request)
    disks.remove(name)
    assert not disks.observe(name).has_volume


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("PUT", f"{ROUTE}/aw-1", {"bytes": -1}),
        ("PUT", f"{ROUTE}/aw-1", {"bytes": 2**60}),
        ("PUT", f"{ROUTE}/aw-1", {"bytes": MIN_BYTES, "path": "/etc"}),
        ("PUT", f"{ROUTE}/..%2Faw-1", {"bytes": MIN_BYTES}),
        ("POST", f"{ROUTE}/aw-1", {"bytes": MIN_BYTES}),
        ("DELETE", ROUTE, None),
        ("POST", "/volumes/create", {"Name": "aw-1", "DriverOpts": {"type": "ext4", "device": "/dev/vda"}}),
    ],
)
def test_filter_refuses_other_disks(installation: str, method: str, target: str, body: object) -> None:
    with running_engine_filter(ENGINE, Policy(installation, frozenset({"127.0.0.1"}))) as host:
        assert EngineSocket(host).send(method, target, body).status == 403


def test_floor_is_measured_in_another_folder_if_the_data_root_is_elsewhere(
    installation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker in a container does not have the engine's data root."""
    monkeypatch.setattr(DiskEngine, "data_root", lambda _: tmp_path / "elsewhere")
    with (
        closing(DiskEngine(ENGINE, installation)) as without,
        closing(DiskEngine(ENGINE, installation, str(tmp_path))) as disks,
    ):
        assert find_disk_shortage(without, 2**60) is None
        assert find_disk_shortage(disks, 1) is None
        assert "AW_MIN_FREE_DISK_BYTES" in str(find_disk_shortage(disks, 2**60))


def test_free_space_and_runtimes_are_checked(disks: DiskEngine, request_: ContainerRequest) -> None:
    assert find_disk_shortage(disks, 1) is None
    assert "AW_MIN_FREE_DISK_BYTES" in str(find_disk_shortage(disks, 2**60))
    require_runtimes(disks, ["runc"])
    with pytest.raises(EngineRefused, match=r"names none-such, which the engine does not have; it has .*runc"):
        require_runtimes(disks, ["none-such"])
    if disks._base_url == ENGINE:
        with pytest.raises(EngineRefused, match="none-such"):
            disks.create(replace(request_, runtime="none-such"))
