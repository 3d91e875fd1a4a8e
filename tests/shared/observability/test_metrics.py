"""Counter files: every process serves the sum of a host's processes, dead ones included."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from sqlmodel import Session

from shared.changes import recorder as change_recorder
from shared.db.database import Database
from shared.observability import counter_files, metrics
from shared.observability.metrics import Source
from shared.settings import Settings
from tests.services import http
from tests.services.directories import REPOSITORY
from tests.services.metrics import read_metrics
from tests.services.ports import Port

STARTS = "agent_workspace_sandbox_starts_total"
REFILL = "agent_workspace_warm_pool_refill_seconds"
# Executes commands, one per line, and responds to each.
PROGRAM = """
import sys
from datetime import timedelta
from pathlib import Path
from prometheus_client import generate_latest
from sqlmodel import Session
from shared.observability import metrics
from shared.observability.metrics import Source
from shared.settings import Settings

settings = Settings(var_dir=Path(sys.argv[1]))
metrics.configure_instruments(settings, sys.argv[2])
print("counting", flush=True)
for line in sys.stdin:
    match line.split():
        case ["start", source]:
            with Session() as session:
                metrics.record_start(session, "spec:1", Source(source))
                metrics.count_starts(session)
        case ["refill", seconds]:
            metrics.observe_refill("spec:1", timedelta(seconds=float(seconds)))
        case ["serve", port]:
            metrics.serve(settings, "127.0.0.1", int(port))
        case ["show"]:
            print(generate_latest(metrics.collector(settings)).decode())
    print("done", flush=True)
"""


class Process:
    """A process that counts."""

    def __init__(self, var: Path, kind: str) -> None:
        command = [sys.executable, "-c", PROGRAM, str(var), kind]
        self._process = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.said = self._listen("counting")

    def send(self, order: str) -> str:
        assert self._process.stdin
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        return self._listen("done")

    def show(self) -> dict[tuple[str, ...], float]:
        said = self.send("show").splitlines(keepends=True)
        return read_metrics("".join(line for line in said if "[warning" not in line))

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _listen(self, last: str) -> str:
        assert self._process.stdout
        said: list[str] = []
        for line in self._process.stdout:
            if line.strip() == last:
                return "".join(said)
            said.append(line)
        raise AssertionError("".join(said))


@pytest.fixture
def var(tmp_path: Path) -> Path:
    return tmp_path / "var"


@pytest.fixture
def begin(var: Path) -> Iterator[Callable[[str], Process]]:
    """Start a process of that kind."""
    with ExitStack() as stack:

        def begin(kind: str) -> Process:
            process = Process(var, kind)
            stack.callback(process.kill)
            return process

        yield begin


def files(var: Path) -> set[str]:
    return {path.name for path in (var / "run" / "metrics").glob("*.db")}


def test_processes_of_a_host_count_together(begin: Callable[[str], Process], var: Path) -> None:
    web, twin, worker = begin("web"), begin("web"), begin("worker")
    web.send("start pool")
    twin.send("start pool")
    twin.send("start boot")
    worker.send("refill 6")
    worker.send("refill 0.1")
    for process in (web, twin, worker):
        told = process.show()
        assert (told[STARTS, "pool", "spec:1"], told[STARTS, "boot", "spec:1"]) == (2, 1)
        assert told[f"{REFILL}_count", "spec:1"] == 2
        assert told[f"{REFILL}_sum", "spec:1"] == pytest.approx(6.1)
        assert [told[f"{REFILL}_bucket", le, "spec:1"] for le in ("0.2", "5.0", "7.5", "+Inf")] == [1, 1, 2, 2]
    names = {"web.1", "web.2", "worker.1"}
    assert files(var) == {f"{kind}_{name}.db" for name in names for kind in ("counter", "histogram")}


def test_next_process_continues_the_counters(begin: Callable[[str], Process], var: Path) -> None:
    first = begin("web")
    first.send("start pool")
    before = files(var)
    first.kill()
    second = begin("web")
    assert second.show()[STARTS, "pool", "spec:1"] == 1
    second.send("start pool")
    assert second.show()[STARTS, "pool", "spec:1"] == 2
    assert files(var) == before


def test_worker_serves_the_counts_of_its_host(begin: Callable[[str], Process]) -> None:
    worker, other = begin("worker"), begin("worker")
    with Port() as port:
        worker.send(f"serve {port}")
        assert "metrics_not_served" in other.send(f"serve {port}")
        other.send("refill 6")
        told = read_metrics(http.get(f"http://127.0.0.1:{port}/metrics").text)
    assert told[f"{REFILL}_count", "spec:1"] == 1


def test_unreadable_file_is_recreated(begin: Callable[[str], Process], var: Path) -> None:
    first = begin("web")
    first.send("start pool")
    first.kill()
    path = var / "run" / "metrics" / "counter_web.1.db"
    for broken in (b"", b"\xff" * 64, path.read_bytes()[:20].ljust(4096, b"\0")):
        path.write_bytes(broken)
        second = begin("web")
        second.send("start boot")
        assert second.show()[STARTS, "boot", "spec:1"] == 1
        second.kill()


@pytest.mark.parametrize("lost", ["", "web.1.lock", "counter_web.1.db"])
def test_removed_files_are_recreated(begin: Callable[[str], Process], var: Path, lost: str) -> None:
    web, twin, worker = begin("web"), begin("web"), begin("worker")
    for process in (web, twin):
        process.send("start pool")
    folder = var / "run" / "metrics"
    shutil.rmtree(folder) if not lost else (folder / lost).unlink()
    assert web.show() == twin.show()
    before = web.show().get((STARTS, "pool", "spec:1"), 0)
    assert before == (1 if lost == "counter_web.1.db" else 0 if not lost else 2)
    web.send("start pool")
    twin.send("start pool")
    worker.send("refill 6")
    late = begin("web")
    late.send("start boot")
    for process in (web, twin, worker, late):
        told = process.show()
        assert (told[STARTS, "pool", "spec:1"], told[STARTS, "boot", "spec:1"]) == (before + 2, 1)
        assert told[f"{REFILL}_count", "spec:1"] == 1


def test_unreadable_file_is_skipped(begin: Callable[[str], Process], var: Path) -> None:
    web, twin = begin("web"), begin("web")
    web.send("start pool")
    twin.send("start pool")
    path = var / "run" / "metrics" / "counter_web.2.db"
    path.unlink()
    path.touch()
    assert web.show()[STARTS, "pool", "spec:1"] == 1


def test_process_that_can_no_longer_create_files_shows_its_counts(begin: Callable[[str], Process], var: Path) -> None:
    process = begin("web")
    process.send("start pool")
    shutil.rmtree(var / "run")
    (var / "run").write_text("in the way")
    process.send("start pool")
    assert process.show()[STARTS, "pool", "spec:1"] == 2
    (var / "run").unlink()
    process.send("start pool")
    assert process.show()[STARTS, "pool", "spec:1"] == 1


def test_files_are_allocated_at_their_creation(begin: Callable[[str], Process], var: Path) -> None:
    begin("web")
    sizes = [path.stat().st_blocks * 512 for path in (var / "run" / "metrics").glob("*.db")]
    assert sizes
    assert min(sizes) >= counter_files.FILE_BYTES


def test_process_that_cannot_create_files_counts_in_memory(begin: Callable[[str], Process], var: Path) -> None:
    (var / "run").mkdir(parents=True)
    (var / "run" / "metrics").write_text("in the way")
    process = begin("web")
    assert "counting_in_memory" in process.said
    process.send("start pool")
    assert process.show()[STARTS, "pool", "spec:1"] == 1


# --- counts of transactions ----------------------------------------------------------------------------------------


def counted(spec_id: str) -> float:
    told = read_metrics(generate_latest(metrics.collector(Settings())).decode())
    return told.get((STARTS, "pool", spec_id), 0)


def start_and_fail(session: Session, spec_id: str) -> None:
    metrics.record_start(session, spec_id, Source.POOL)
    raise ZeroDivisionError


def test_transaction_that_is_rolled_back_is_not_counted(database: Database, tmp_path: Path) -> None:
    spec_id = str(tmp_path)
    with pytest.raises(ZeroDivisionError), database.transaction() as session:
        start_and_fail(session, spec_id)
    assert counted(spec_id) == 0


def test_savepoint_that_is_rolled_back_is_not_counted(database: Database, tmp_path: Path) -> None:
    spec_id = str(tmp_path)
    with database.transaction() as session:
        with pytest.raises(ZeroDivisionError), change_recorder.savepoint(session):
            start_and_fail(session, spec_id)
        with change_recorder.savepoint(session):
            metrics.record_start(session, spec_id, Source.POOL)
        assert counted(spec_id) == 0
    assert counted(spec_id) == 1
