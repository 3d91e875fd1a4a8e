"""Containers and volumes that tests put into the in-memory engine directly."""

from typing import Any

from shared.models import Sandbox, SandboxSpec
from tests.factories import ApiUser
from tests.fakes.container import FakeContainer
from tests.fakes.engine import IMAGE, FakeEngine
from tests.worker.scenarios import INSTALLATION
from worker.engine.protocol import ContainerState
from worker.sandboxes.container_spec import container_request


def put(
    engine: FakeEngine,
    sandbox: Sandbox,
    state: ContainerState = ContainerState.RUNNING,
    installation: str = INSTALLATION,
) -> str:
    """Create a sandbox's container in the given state, and its volume; return their name."""
    request = container_request(sandbox, SandboxSpec(id=IMAGE, position=0), installation=installation)
    engine.volumes[request.name] = request.labels
    if state != ContainerState.ABSENT:
        engine.containers[request.name] = FakeContainer(request, state)
    return request.name


def sandbox_without_row(user: ApiUser, digit: str = "f") -> Sandbox:
    """Return a sandbox that has no row."""
    columns: dict[str, Any] = {"id": digit * 32, "owner_id": user.id}
    return Sandbox(**columns)
