"""Probes of this machine: the engine, the service's files and its logs."""

import errno
import os
import socket
import subprocess

from tests.isolation.probes.base import Outcome


def read_in_container(docker: str, container: str, path: str, contains: str) -> Outcome:
    """Read a file of a container as root."""
    text = _docker(docker, "exec", "--user=0", container, "cat", path)
    return contains in text, f"{len(text)} characters"


def inspection_shows(docker: str, container: str, needle: str) -> Outcome:
    """Find a text in the engine's inspection of a container."""
    text = _docker(docker, "inspect", container)
    return needle in text, f"{len(text)} characters"


def log_shows(docker: str, container: str, needle: str) -> Outcome:
    """Find a text in a container's log."""
    text = _docker(docker, "logs", container)
    return needle in text, f"{len(text)} characters"


def publishes(docker: str, container: str) -> Outcome:
    """Find ports that a container publishes on the machine."""
    text = _docker(docker, "port", container)
    return bool(text.strip()), text.strip()


def files_show(folder: str, suffix: str, needle: str) -> Outcome:
    """Find a text in files of a folder."""
    found = []
    for name in os.listdir(folder):
        if name.endswith(suffix) and os.path.isfile(f"{folder}/{name}"):
            with open(f"{folder}/{name}", "rb") as file:
                if needle.encode() in file.read():
                    found.append(name)
    return bool(found), f"{found}"


def connect_unix(path: str) -> Outcome:
    """Connect to a program's unix socket."""
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(path)
    return True, "connected"


def _docker(docker: str, *arguments: str) -> str:
    done = subprocess.run(["docker", "--host", docker, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PermissionError(errno.EPERM, done.stderr[:200])
    return done.stdout + done.stderr
