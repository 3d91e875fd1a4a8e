"""`python -m tests.stages.pythons 3.13`: create an environment with another Python, for the nightly unit tests."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.services.directories import REPOSITORY

# The directory in which uv installs a Python that the machine does not have.
UV = REPOSITORY / ".venv" / "bin" / "uv"
OWN = "import sys; print('.'.join(map(str, sys.version_info[:2])))"


def environment_of(version: str) -> Path:
    """The environment of a version, below the repository."""
    return Path("var", "python", version)


def make_environment(version: str) -> int:
    """Create the environment unless it is up to date; return the exit status."""
    (REPOSITORY / environment_of(version)).parent.mkdir(parents=True, exist_ok=True)
    chosen = {"AW_PYTHON": find_python(version), "AW_ENVIRONMENT": str(environment_of(version))}
    return subprocess.run([REPOSITORY / "deploy" / "setup", "unit"], env=os.environ | chosen, check=False).returncode


def find_python(version: str) -> str:
    """Find a Python of a version: on the PATH, installed by pyenv, or known to or installed by uv.

    Raises:
        SystemExit: no such Python was found.
    """
    for found in _installed(version):
        if _version_of(found) == version:
            return found
    for command in (("install", version), ("find", "--no-project", version)):
        requested = subprocess.run([UV, "python", *command], stdout=subprocess.PIPE, text=True, check=False)
        if requested.returncode != 0:
            raise SystemExit(f"there is no Python {version} here, and uv can't fetch one: see above")
    return requested.stdout.strip()


def _installed(version: str) -> Iterator[str]:
    if found := shutil.which(f"python{version}"):
        yield found
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    yield from (str(path) for path in sorted(kept.glob(f"{version}.*/bin/python{version}")))


def _version_of(python: str) -> str:
    # The program on the PATH may be a shim that looks for the real one.
    return subprocess.run([python, "-c", OWN], capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(make_environment(sys.argv[1]))
