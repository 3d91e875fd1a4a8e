"""Probes of this machine: what the engine, the service's files and its logs show."""

import errno
import os
import socket
import subprocess

from tests.isolation.probes.base import Outcome


def read_in_container(docker: str, container: str, path: str, contains: str) -> Outcome:
    """A file of a container, read as root."""
    text = _docker(docker, "exec", "--user=0", container, "cat", path)
    return contains in text, f"{len(text)} characters"


def inspection_shows(docker: str, container: str, needle: str) -> Outcome:
    """A text in what the engine shows of a container."""
    text = _docker(docker, "inspect", container)
    return needle in text, f"{len(text)} characters"


def log_shows(docker: str, container: str, needle: str) -> Outcome:
    """A text in a container's log."""
    text = _docker(docker, "logs", container)
    return needle in text, f"{len(text)} characters"


def publishes(docker: str, container: str) -> Outcome:
    """Ports that a container publishes on the machine."""
    text = _docker(docker, "port", container)
    return bool(text.strip()), text.strip()


def files_show(folder: str, suffix: str, needle: str) -> Outcome:
    """A text in files of a folder."""
    found = []
    for name in os.listdir(folder):
        if name.endswith(suffix) and os.path.isfile(f"{folder}/{name}"):
            with open(f"{folder}/{name}", "rb") as file:
                if needle.encode() in file.read():
                    found.append(name)
    return bool(found), f"{found}"


def connect_unix(path: str) -> Outcome:
    """A connection to a program's socket."""
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(path)
    return True, "connected"


def _docker(docker: str, *arguments: str) -> str:
    done = subprocess.run(["docker", "--host", docker, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PermissionError(errno.EPERM, done.stderr[:200])
    return done.stdout + done.stderr
