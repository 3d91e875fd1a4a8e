"""Servers end on request, even if the tests run in a shell's background."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services import processes
from tests.waiting import eventually


@pytest.fixture
def _in_background() -> Iterator[None]:
    """Ignore SIGINT, as a shell's background processes and their children do."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_in_background")
def test_server_of_tests_in_the_background_ends_at_an_interrupt(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = processes.start(["sh", "-c", "echo begun; exec sleep 600"], log)
    eventually(log.read_text)
    processes.stop(process)
    assert process.returncode == -signal.SIGINT
