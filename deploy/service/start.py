"""Start of the service: prepare the installation, then supervise its processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from deploy.service.configuration import write_configuration
from deploy.service.errors import ServiceError
from deploy.service.folder import hold_folder, refuse_long_path
from deploy.service.owners import assign_files, has_own_users
from deploy.service.ports import refuse_taken_ports
from deploy.service.processes import find_procfile, read_processes
from deploy.service.sockets import hold_sockets
from deploy.service.supervision import supervise
from shared.settings import Settings
from worker.settings import WorkerSettings

OWN_IMAGES = "agent-workspace/"
IMAGE_BUILD = Path(__file__).parents[1] / "image" / "build"


def main(arguments: list[str]) -> None:
    """Run until SIGINT, SIGTERM or SIGHUP.

    Args:
        arguments: numbers of processes, such as `web=2`; the default is 1.

    Raises:
        ServiceError: the arguments are invalid, the var directory's path is too long, another service runs in this
            folder, a port is in use, or a preparation command failed, whose output names the cause.
    """
    settings = Settings()
    own_users = has_own_users(settings)
    processes = read_processes(
        find_procfile(),
        arguments,
        embedded_broker=not settings.redis_url,
        engine_filter=own_users,
        network_isolation=settings.network_isolation,
    )
    refuse_long_path(settings)
    with hold_folder(settings):
        refuse_taken_ports(settings, processes)
        # Commands of the Procfile and of `prepare` come from this Python environment.
        os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        names = {process.name for process in processes}
        prepare(settings, needs_image="worker" in names)
        if "web" in names:
            hold_sockets(settings)
        if "flower" in names and "remote_control" not in WorkerSettings().model_fields_set:
            os.environ["AW_REMOTE_CONTROL"] = "1"  # of the workers, by which Flower reads their details
        if own_users:
            assign_files(settings)
        supervise(write_configuration(processes, settings.var_dir, own_users=own_users))


def prepare(settings: Settings, *, needs_image: bool) -> None:
    """Create the database and the first user if they are missing, and beside a worker the sandbox image."""
    if needs_image and settings.default_sandbox_image.startswith(OWN_IMAGES):
        _run(str(IMAGE_BUILD), "sandbox", AW_DOCKER_HOST=WorkerSettings().docker_host)
    _run("agent-workspace", "migrate")
    _run("agent-workspace", "bootstrap")


def _run(*command: str, **variables: str) -> None:
    # In its own process group: Ctrl-C reaches only this process, which then ends the command with its children.
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0, env=os.environ | variables)
    try:
        status = process.wait()
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        raise
    if status:
        raise ServiceError(f"{command[0]} failed ({status}): see above")
