"""The end of a deployment's processes."""

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.services.deployment import Deployment


@dataclass
class Engine:
    """The addresses of an engine that gets no request."""

    host: str = "unix:///nowhere"
    gateway: str = "127.0.0.1"
    address: str = "127.0.0.1"
    network: str = ""


@dataclass
class Program:
    """A process that ends on request."""

    name: str
    seen: list[str]

    def send_signal(self, number: int) -> None:
        if number == signal.SIGTERM:
            self.seen.append(f"{self.name} is stopped")

    def wait(self, _timeout: float | None = None) -> int:
        self.seen.append(f"{self.name} has ended")
        return 0


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_doors_outlive_workers_that_finish_their_jobs(database_url: str, tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, Engine(), database_url=database_url, broker_url="")
    seen: list[str] = []
    for name in ("api", "door-a", "worker", "door-b"):
        program: Any = Program(name, seen)
        deployment.adopt(name, program)
    deployment.stop()
    assert sorted(seen[:2]) == ["api is stopped", "worker is stopped"]
    assert seen.index("worker has ended") < seen.index("door-a is stopped") < seen.index("door-b has ended")
