"""Sandboxes of the real image with the service's options, on the machine's engine, without a service."""

from shared.ids import new_id
from tests.services.engine import SANDBOX_IMAGE
from worker.engine.docker_engine import INSTALLATION_LABEL, SANDBOX_LABEL, DockerEngine
from worker.engine.protocol import ContainerRequest
from worker.sandboxes.container_spec import CONFIG_ENV, CONFIG_PATH


def start_sandbox(engine: DockerEngine, installation: str, config: bytes) -> str:
    """Start a sandbox whose agent server has this configuration; return the container's name."""
    request = _make_request(installation)
    engine.create(request)
    engine.put_file(request.name, CONFIG_PATH, config)
    engine.start(request.name)
    return request.name


def _make_request(installation: str) -> ContainerRequest:
    sandbox_id = new_id()
    return ContainerRequest(
        name=f"aw-{sandbox_id}",
        image=SANDBOX_IMAGE,
        command=None,
        env={CONFIG_ENV: CONFIG_PATH},
        labels={INSTALLATION_LABEL: installation, SANDBOX_LABEL: sandbox_id},
        working_dir="/workspace/project",
        memory_bytes=1024**3,
        cpus=2.0,
        pids=512,
        capabilities=[],
        runtime=None,
        has_files=False,
    )
