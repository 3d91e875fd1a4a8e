"""The real engine for tests, and the broom that follows them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from worker.engine import DockerEngine

SANDBOX_IMAGE = "agent-workspace/sandbox:1.58.2"
TINY_IMAGE = "agent-workspace/tiny:1"
# Every installation a test makes is named so, and may be swept by its label.
TEST_INSTALLATION = "test-"


@contextmanager
def docker_engine() -> Iterator[DockerEngine]:
    """The engine that `make test` has seen to."""
    engine = DockerEngine(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"))
    yield engine
    engine.close()


def sweep_engine(installation: str) -> None:
    """Remove whatever a test's installation left."""
    with docker_engine() as engine:
        names = {item.name for item in engine.list_containers(installation)} | set(engine.list_volumes(installation))
        for name in names:
            engine.remove(name)
