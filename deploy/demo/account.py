"""The demo's own user, so that no other user's settings change."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.demo.errors import DemoError

USER = "demo"
PREFIX_LENGTH = len("aw_") + 8
COMMAND = Path(sys.executable).with_name("agent-workspace")


@contextmanager
def temporary_key() -> Iterator[str]:
    """A key of the user `demo`, created through the command line and revoked afterwards."""
    run("users", "create", USER, "--exist-ok")
    lines = run("keys", "create", USER, "--name", USER).split()
    if not lines:
        raise DemoError(f"{COMMAND.name} keys create printed no key")
    key = lines[-1]
    try:
        yield key
    finally:
        run("keys", "revoke", prefix(key))


def prefix(key: str) -> str:
    """The prefix under which a key is listed and revoked; it is not secret."""
    return key[:PREFIX_LENGTH]


def run(*arguments: str) -> str:
    """Run the service's command line in this environment and return its output."""
    command = [str(COMMAND), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=os.environ)
    except FileNotFoundError:
        raise DemoError(f"{COMMAND} is missing; start the service with `make run` first") from None
    if done.returncode != 0:
        output = done.stderr.strip() or done.stdout.strip()
        raise DemoError(f"`{COMMAND.name} {' '.join(arguments[:2])}` failed: {output}")
    return done.stdout
