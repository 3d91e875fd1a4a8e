"""The processes of the service, from the Procfile, and their numbers."""

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
    ("counts", "embedded", "expected"),
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
def test_processes_have_the_requested_numbers(
    procfile: Path, counts: list[str], embedded: bool, expected: dict[str, int]
) -> None:
    found = read_processes(procfile, counts, embedded_broker=embedded)
    assert [(process.name, process.count) for process in found] == list(expected.items())


@pytest.mark.parametrize("text", ["web", "web=", "=2", "web=two", "web=-1", "web=1.5", "unknown=1", ""])
def test_malformed_count_is_rejected(procfile: Path, text: str) -> None:
    with pytest.raises(ServiceError, match=rf"got {text!r}; .*broker, web, worker, flower"):
        read_processes(procfile, [text], embedded_broker=True)


@pytest.mark.parametrize("is_started", [True, False])
def test_engine_filter_is_started_where_it_is_needed(is_started: bool) -> None:
    found = read_processes(REPOSITORY / "Procfile", [], embedded_broker=True, engine_filter=is_started)
    assert [process.count for process in found if process.name == "engine-filter"] == [1] * is_started


def test_procfile_of_the_repository_is_read() -> None:
    found = read_processes(REPOSITORY / "Procfile", [], embedded_broker=True)
    assert {process.name for process in found} == {"broker", "web", "door", "egress-proxy", "worker", "flower"}
    without = read_processes(REPOSITORY / "Procfile", ["worker=0"], embedded_broker=True)
    assert not {"door", "egress-proxy"} & {process.name for process in without}
    bare = read_processes(REPOSITORY / "Procfile", [], embedded_broker=True, network_isolation=False)
    assert "egress-proxy" not in {process.name for process in bare}
