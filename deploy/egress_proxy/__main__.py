"""`python -m deploy.egress_proxy`: run this node's egress proxy in the foreground.

It waits until a sandbox needs it, which is when the worker's folder has a file, and until the sandboxes' network
exists. Then it becomes Squid, as a user of its own if root starts it. Squid inherits the folder, already open, and its
program for decisions: that user can enter no other folder of the service.
"""

import errno
import os
import shutil
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

from deploy.egress_proxy import configuration, decisions
from deploy.egress_proxy.configuration import ProxyParameters
from deploy.service.programs import PATH, as_user, become, in_memory
from shared.cli.process_settings import read_settings
from shared.settings import Settings
from worker.network.addresses import PROXY_USER, resolvers
from worker.settings import AUTO, NO_RESOLVERS, WorkerSettings

# Pause between two checks for the sandboxes' network.
SECONDS = 1.0
# Waits for a file in the folder, and becomes the command behind it. Most nodes need no proxy, and a shell takes 2 MB.
WAIT = 'while :; do for file in "$0"/*; do if [ -e "$file" ]; then exec "$@"; fi; done; sleep 1; done'


def main() -> None:
    """Wait, and become Squid."""
    shared, settings = read_settings(Settings, "egress-proxy"), read_settings(WorkerSettings, "egress-proxy")
    try:
        address, folder = shared.sandbox_gateway, shared.egress_folder
        if not _is_needed(folder):
            os.execv("/bin/sh", ["sh", "-c", WAIT, str(folder), sys.executable, "-m", "deploy.egress_proxy"])  # noqa: S606
        while not _is_own(address):
            time.sleep(SECONDS)
        squid, python, identity = find_program("squid"), find_program("python3"), as_user(PROXY_USER)
        opened = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        program = in_memory("decisions", Path(decisions.__file__).read_text())
        helper = f"{python} -I {_of_parent(program)} {_of_parent(opened)}"
        proxy = ProxyParameters(address, settings.egress_port, helper, _name_servers(settings.sandbox_dns))
    except (OSError, ValueError) as error:
        sys.exit(f"egress-proxy: {error}")
    file = in_memory("egress-proxy", configuration.write(proxy))
    os.set_inheritable(opened, True)  # noqa: FBT003 - a positional-only parameter
    become([*identity, squid, "-N", "-d0", "-f", f"/dev/fd/{file}"])


def find_program(name: str) -> str:
    """Return the path of a program.

    Raises:
        FileNotFoundError: it is missing.
    """
    if (found := shutil.which(name, path=PATH)) is None:
        raise FileNotFoundError(f"{name} is missing; install it with deploy/setup, or: apt-get install {name}")
    return found


def _is_needed(folder: Path) -> bool:
    with suppress(OSError):
        return any(not path.name.startswith(".") for path in folder.iterdir())
    return False


def _is_own(address: str) -> bool:
    """Whether the address is one of this machine: it is when the engine has created the sandboxes' network."""
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                return False
            raise
        return True


def _name_servers(setting: str) -> tuple[str, ...]:
    return () if setting in (AUTO, NO_RESOLVERS) else resolvers(setting)


def _of_parent(descriptor: int) -> str:
    """The path of a descriptor that Squid inherits, for a program that Squid starts: its parent has this process's id.

    Squid closes descriptors for such programs.
    """
    return f"/proc/{os.getpid()}/fd/{descriptor}"


if __name__ == "__main__":
    main()
