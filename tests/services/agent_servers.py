"""Agent servers in containers of their own, as the worker makes them, without a service."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from shared.ids import new_id
from shared.models import Sandbox, SandboxSpec
from tests.services.engine import SANDBOX_IMAGE, docker_engine, name_installation
from tests.services.slots import taken_slot
from worker.sandbox_container import CONFIG_PATH, container_request


@contextmanager
def booted(config: bytes, image: str = SANDBOX_IMAGE) -> Iterator[str]:
    """Where the agent server of a new sandbox will listen."""
    installation = name_installation()
    columns: dict[str, Any] = {"id": new_id(), "owner_id": new_id()}
    sandbox = Sandbox(**columns)
    spec = SandboxSpec(id=image, position=0)
    with docker_engine(installation) as engine, taken_slot() as slot:
        request = container_request(sandbox, spec, installation=installation, address=slot.address)
        engine.create(request)
        engine.put_file(request.name, CONFIG_PATH, config)
        engine.start(request.name)
        yield f"http://{slot.address}:{engine.observe(request.name).ports[8000]}"
