"""Which processes the service starts: the Procfile, and how many of each."""

from pathlib import Path

import pytest

from deploy.service.errors import ServiceError
from deploy.service.processes import read_processes
from tests.services.directories import REPOSITORY

PROCFILE = "broker: b\nweb: python -m web --port=${PORT:-1}\nworker: w: v\nflower: f\n"


@pytest.fixture
def procfile(tmp_path: Path) -> Path:
    path = tmp_path / "Procfile"
    path.write_text(PROCFILE)
    return path


@pytest.mark.parametrize(
    ("wishes", "embedded", "expected"),
    [
        ([], True, {"broker": 1, "web": 1, "worker": 1, "flower": 1}),
        ([], False, {"web": 1, "worker": 1, "flower": 1}),
        (["web=2", "worker=3", "flower=0"], True, {"broker": 1, "web": 2, "worker": 3}),
        (["web=2", "web=4"], False, {"web": 4, "worker": 1, "flower": 1}),
        (["broker=5"], True, {"broker": 1, "web": 1, "worker": 1, "flower": 1}),
        (["broker=5"], False, {"web": 1, "worker": 1, "flower": 1}),
        (["broker=0"], True, {"web": 1, "worker": 1, "flower": 1}),
    ],
)
def test_processes_are_as_many_as_asked_for(
    procfile: Path, wishes: list[str], embedded: bool, expected: dict[str, int]
) -> None:
    found = read_processes(procfile, wishes, embedded_broker=embedded)
    assert [(process.name, process.count) for process in found] == list(expected.items())


@pytest.mark.parametrize("wish", ["web", "web=", "=2", "web=two", "web=-1", "web=1.5", "unknown=1", ""])
def test_a_wish_that_makes_no_sense_is_repeated(procfile: Path, wish: str) -> None:
    with pytest.raises(ServiceError, match=rf"^{wish}: .*broker, web, worker, flower"):
        read_processes(procfile, [wish], embedded_broker=True)


def test_our_own_procfile_is_read() -> None:
    found = read_processes(REPOSITORY / "Procfile", [], embedded_broker=True)
    assert {process.name for process in found} == {"broker", "web", "worker", "flower"}
