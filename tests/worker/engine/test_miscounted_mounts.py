"""Docker miscounts the mounts of a volume after a failed mount, and does not remove it until Docker is restarted."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from tests.fixtures.containers import started
from tests.services.engine import TINY_IMAGE
from tests.services.power import cut_power
from tests.services.private_engine import PrivateEngine, running_private_engine
from worker.engine.disk_engine import DiskEngine
from worker.engine.disk_images import MIN_BYTES, DiskImages
from worker.engine.protocol import ContainerRequest, ContainerState


@pytest.fixture
def engine() -> Iterator[PrivateEngine]:
    with running_private_engine([TINY_IMAGE]) as engine:
        yield engine


def test_sandbox_is_removed_although_its_volume_is_not(
    engine: PrivateEngine, request_: ContainerRequest, installation: str
) -> None:
    images, request = DiskImages(engine.data, installation), replace(request_, disk_bytes=MIN_BYTES, has_files=False)
    with closing(DiskEngine(engine.host, installation)) as worker:
        name = started(worker, request)
        cut_power(engine)
        engine.start()
        with pytest.raises(AssertionError, match="error while mounting volume"):
            engine.docker("start", name)  # an operator; nothing has attached the disk yet
        worker.start(name)
        engine.docker("stop", "--time", "0", name)
        for _ in range(2):
            worker.remove(name)
            found = worker.observe(name)
            assert (found.state, found.has_volume) == (ContainerState.ABSENT, False)
            assert (engine.containers(), engine.volumes(), images.names()) == ([], [name], [])
            assert not (engine.data / "volumes" / name / "_data").is_mount()
        engine.stop()
        engine.start()
        worker.remove(name)
        assert engine.volumes() == []
