"""A wrong setting ends a process with the name of its variable, in one line without the value."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.directories import REPOSITORY


@pytest.mark.parametrize(
    ("module", "variable"),
    [
        ("api", "AW_PORT"),
        ("deploy.service.node_address", "AW_PORT"),
        ("deploy.service.node_address", "AW_DATABASE_WAIT_SECONDS"),
        ("worker", "AW_DATABASE_URL"),
        ("worker", "AW_CONCURRENCY"),
        ("deploy.door", "AW_PORT"),
        ("deploy.engine_filter", "AW_DOOR_PORT"),
        ("deploy.egress_proxy", "AW_EGRESS_PORT"),
    ],
)
def test_process_names_the_variable_of_a_wrong_setting(tmp_path: Path, module: str, variable: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "worker"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY), variable: "hush"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert (f"wrong settings: {variable}: " in done.stderr, "hush" in done.stderr) == (True, False)
