"""Pulls of images from a test registry into a private engine."""

from collections.abc import Iterator

import pytest

from tests.services.engine import TINY_IMAGE
from tests.services.private_engine import running_private_engine
from tests.services.registry import Registry, running_registry
from worker.engine.docker_engine import DockerEngine
from worker.engine.protocol import ImageMissing


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with running_registry(TINY_IMAGE) as registry:
        yield registry


@pytest.fixture(scope="module")
def engine() -> Iterator[DockerEngine]:
    with running_private_engine([]) as private:
        engine = DockerEngine(private.host)
        yield engine
        engine.close()


@pytest.mark.parametrize(
    ("name", "words"),
    [("tiny:missing", "no such thing"), ("broken:1", "denied")],
)
def test_failed_pull_has_its_reason(engine: DockerEngine, registry: Registry, name: str, words: str) -> None:
    """The first pull is refused immediately, the second during its progress."""
    with pytest.raises(ImageMissing, match=words):
        engine.pull(f"{registry.address}/{name}")


def test_image_that_is_pulled_twice_is_present(engine: DockerEngine, registry: Registry) -> None:
    image = f"{registry.address}/tiny:3"
    assert engine.find_image(image) is None
    for _ in range(2):
        engine.pull(image)
        assert engine.find_image(image) is not None
