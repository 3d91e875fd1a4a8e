"""Programs of Debian packages, which tests install if the machine lacks them."""

import os
import shutil
import subprocess

from tests.services.directories import REPOSITORY

PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"


def find_program(name: str, package: str) -> str:
    """Return the path of a program, after installing its package if the program is missing."""
    if (found := shutil.which(name, path=PATH)) is None:
        subprocess.run([REPOSITORY / "deploy" / "install-packages", package], check=True, timeout=300)
        found = shutil.which(name, path=PATH)
    assert found, f"{package} has no {name}"
    return found
