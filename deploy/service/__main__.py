"""`python -m deploy.service [PROCESS=NUMBER...]`: prepare the installation, then supervise its processes."""

import os
import subprocess
import sys
from pathlib import Path

from deploy.service.configuration import write_configuration
from deploy.service.errors import ServiceError
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
        ServiceError: the arguments or the Procfile make no sense, or something is listening on our ports.
        subprocess.CalledProcessError: a preparation failed; it has said why.
    """
    settings = Settings()
    processes = read_processes(Path("Procfile"), arguments, embedded_broker=not settings.redis_url)
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
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ServiceError as error:
        sys.exit(str(error))
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error.cmd[0]} failed ({error.returncode}): see above")
    except KeyboardInterrupt:
        sys.exit(130)
