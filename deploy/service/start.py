"""A start of the service: prepare the installation, then supervise its processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from deploy.service.configuration import write_configuration
from deploy.service.errors import ServiceError
from deploy.service.folder import hold_folder
from deploy.service.ports import refuse_taken_ports
from deploy.service.processes import read_processes
from deploy.service.sockets import hold_sockets
from deploy.service.supervision import supervise
from shared.settings import Settings

OWN_IMAGES = "agent-workspace/"


def main(arguments: list[str]) -> None:
    """Run until told to stop (SIGINT, SIGTERM or SIGHUP).

    Args:
        arguments: how many of each process, as `web=2`; one where nothing is said.

    Raises:
        ServiceError: the arguments or the Procfile make no sense, another service runs in this folder, or something
            is listening on our ports; or a preparation failed, which has said why.
    """
    settings = Settings()
    processes = read_processes(Path("Procfile"), arguments, embedded_broker=not settings.redis_url)
    with hold_folder(settings):
        refuse_taken_ports(settings, processes)
        # The Procfile's commands, and ours below, are those of this environment.
        os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        prepare(settings)
        if any(process.name == "web" for process in processes):
            hold_sockets(settings)
        supervise(write_configuration(processes, settings.var_dir))


def prepare(settings: Settings) -> None:
    """Make the sandbox image, the database and the first user, where they are not there yet."""
    if settings.default_sandbox_image.startswith(OWN_IMAGES):
        _run("deploy/image/build", "sandbox")
    _run("agent-workspace", "migrate")
    _run("agent-workspace", "bootstrap")


def _run(*command: str) -> None:
    # In a group of its own: Ctrl-C reaches this process alone, which then ends the command with all that it has begun.
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
    try:
        status = process.wait()
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        raise
    if status:
        raise ServiceError(f"{command[0]} failed ({status}): see above")
