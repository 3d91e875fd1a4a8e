"""The commands by which the documentation installs the package."""

import re
import subprocess
from pathlib import Path

import pytest

from shared import __version__
from tests.integration.earlier_code import check_out
from tests.services.directories import REPOSITORY

PAGE = REPOSITORY / "docs" / "use" / "command-line.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
INSTALL = re.compile(r"^\S*/(?:pip|uv) .*$", re.MULTILINE)
# With hashes in a file of constraints, pip refuses the project's own folder, which has none. uv does not.
EXPECTED = {
    "pip install --require-hashes --requirement deploy/tools.lock",
    "uv pip install --python ENVIRONMENT --constraint requirements.lock .",
}


def test_pages_install_with_the_same_commands() -> None:
    found = [line for page in (REPOSITORY / "docs").rglob("*.md") for line in _installs(page)]
    assert {re.sub(r"--python \S+", "--python ENVIRONMENT", line) for line in found} == EXPECTED
    assert len(found) > len(EXPECTED)


@pytest.mark.nightly  # it downloads all packages
def test_command_line_is_installed_as_documented(tmp_path: Path) -> None:
    [script] = (block for block in _blocks(PAGE) if "-m venv" in block)
    check_out("HEAD", tmp_path / "clone")
    done = subprocess.run(
        ["sh", "-ec", script], cwd=tmp_path / "clone", capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"agent-workspace {__version__}"


def _blocks(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text())


def _installs(page: Path) -> list[str]:
    found = [line for block in _blocks(page) for line in INSTALL.findall(block)]
    return [line.rpartition("/bin/")[2] for line in found if "agent-workspace" in line or "/bin/" in line]
