"""`python -m deploy.service.health [FILE | --without-database]`: whether this machine's API is ready, as exit status.

Processes of several units or containers share the API's port, and any of them may respond. The check succeeds only if
the process in question has responded: systemd's `MAINPID`, or process 1 of the container.

Swarm replaces an unhealthy container, but a new API process does not repair a database. So with FILE, which is created
when the process is ready for the first time, only the process's own response counts from then on. A unit of systemd has
started when its process responds, also with 503 for lack of a database.

It imports little: it runs every few seconds.
"""

import json
import os
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from shared.settings import Settings

ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound
PAUSE_SECONDS = 0.05
WITHOUT_DATABASE = "--without-database"
# The index, after the name, of the field of `/proc/PID/stat` with the process's start, in ticks since the machine's.
START = 19


def local_url(settings: Settings) -> str:
    """The API's URL on this machine."""
    address = ANY_ADDRESS.get(settings.host, settings.host)
    return f"http://[{address}]:{settings.port}" if ":" in address else f"http://{address}:{settings.port}"


def is_ready(url: str, seconds: float = 2) -> bool:
    """Whether the API at this URL is ready within `seconds`."""
    return _read(f"{url}/ready", seconds) is not None


def responds(url: str, age: float, seconds: float, *, ready: bool = True) -> bool:
    """Whether an API process no older than `age` seconds responds at this URL within `seconds`, and is ready.

    Args:
        ready: whether the database must respond, too.
    """
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        body = _read(f"{url}/server_info", left)
        # The database's state is the same for all processes.
        if body is not None and float(json.loads(body)["uptime"]) <= age:
            return not ready or is_ready(url, seconds)
        time.sleep(PAUSE_SECONDS)
    return False


def age_of(pid: str) -> float:
    """The seconds for which a process has run."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    up = float(Path("/proc/uptime").read_text().split()[0])
    return up - int(fields[START]) / os.sysconf("SC_CLK_TCK")


def main(arguments: Sequence[str]) -> bool:
    """Whether the process is healthy. If a file is named, the database counts only until the process was ready once."""
    counts = WITHOUT_DATABASE not in arguments
    was_ready = Path(arguments[0]) if arguments and counts else None
    age = age_of(os.environ.get("MAINPID", "1"))
    ready = counts and (was_ready is None or not was_ready.exists())
    found = responds(local_url(Settings()), age, seconds=20, ready=ready)
    if found and was_ready is not None:
        was_ready.touch()
    return found


def _read(url: str, seconds: float) -> bytes | None:
    """The body of a successful response; None: there was none."""
    # The API on this machine is reached without a proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=seconds) as response:
            return bytes(response.read())
    except OSError:
        return None


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1:]))
