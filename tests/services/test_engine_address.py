"""The tests' commands and clients use one engine."""

import pytest

from tests.services import programs

ADDRESSES = """
import os
from tests.services.engine_address import ENGINE
print(ENGINE, os.environ.get("DOCKER_HOST"))
"""


def test_docker_commands_use_the_engine_of_the_tests_in_any_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONTEXT", "elsewhere")
    with programs.running(ADDRESSES) as program:
        assert program.read() == " ".join(["unix:///var/run/docker.sock"] * 2)
