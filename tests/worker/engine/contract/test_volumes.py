"""Volumes without labels, and volumes that another container uses.

Docker creates a volume for a container whose volume is missing, and never adds labels later.
"""

import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.fakes.engine import FakeEngine
from tests.fixtures.containers import started, state
from tests.services.engine import TINY_IMAGE
from worker.engine.protocol import ContainerRequest, ContainerState, Engine


@pytest.fixture
def unlabelled(engine: Engine, request_: ContainerRequest) -> Iterator[str]:
    name = request_.name
    if isinstance(engine, FakeEngine):
        engine.volumes[name] = {}
    else:
        subprocess.run(["docker", "volume", "create", name], check=True, capture_output=True)
    yield name
    engine.remove(name)


@pytest.fixture
def shared(engine: Engine, request_: ContainerRequest) -> Iterator[str]:
    """The name of a container whose volume another container uses, too."""
    name, other = started(engine, request_), f"{request_.name}-other"
    if isinstance(engine, FakeEngine):
        engine.shared_volumes.add(name)
        yield name
        engine.shared_volumes.clear()
    else:
        command = ["docker", "create", "--name", other, "--volume", f"{name}:/workspace", TINY_IMAGE]
        subprocess.run(command, check=True, capture_output=True)
        yield name
        subprocess.run(["docker", "rm", other], check=True, capture_output=True)
    engine.remove(name)
    assert not engine.observe(name).has_volume


def test_volume_in_use_by_another_container_is_kept_without_an_error(engine: Engine, shared: str) -> None:
    engine.remove(shared)
    left = engine.observe(shared)
    assert (left.state, left.has_volume) == (ContainerState.ABSENT, True)


def test_kept_volume_keeps_its_labels(engine: Engine, request_: ContainerRequest) -> None:
    engine.create(request_)
    engine.remove_container(request_.name)
    left = engine.observe(request_.name)
    assert (left.state, left.has_volume, left.labels) == (ContainerState.ABSENT, True, request_.labels)


def test_unlabelled_volume_is_listed_apart(engine: Engine, unlabelled: str, installation: str) -> None:
    assert unlabelled in engine.list_unlabelled_volumes()
    assert engine.list_volumes(installation) == []


def test_unlabelled_volume_is_replaced_where_the_sandbox_was_never_ready(
    engine: Engine, request_: ContainerRequest, unlabelled: str, installation: str
) -> None:
    engine.create(replace(request_, has_files=False))
    assert engine.list_volumes(installation) == [unlabelled]
    assert state(engine, unlabelled) == ContainerState.CREATED


def test_unlabelled_volume_is_kept_where_it_may_hold_files(
    engine: Engine, request_: ContainerRequest, unlabelled: str, installation: str
) -> None:
    engine.create(request_)
    assert engine.list_volumes(installation) == []
    assert unlabelled in engine.list_unlabelled_volumes()


def test_unlabelled_volume_is_removed_with_its_container(
    engine: Engine, request_: ContainerRequest, unlabelled: str
) -> None:
    started(engine, request_)
    engine.remove(unlabelled)
    assert unlabelled not in engine.list_unlabelled_volumes()
