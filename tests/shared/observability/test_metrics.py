"""Counter files: every process serves the sum of a host's processes, dead ones included."""

import shutil
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from sqlmodel import Session

from shared.changes import recorder as change_recorder
from shared.db.database import Database
from shared.observability import metric_files, metrics
from shared.observability.metrics import StartSource
from shared.settings import Settings
from tests.services import http
from tests.services.forked_program import ForkedProgram, Run, forked_program
from tests.services.metrics import read_metrics
from tests.services.ports import Port

STARTS = "agent_workspace_sandbox_starts_total"
REFILL = "agent_workspace_warm_pool_refill_seconds"


class Process:
    """A process that counts."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.pid = run.pid
        self.said = self._listen("counting")

    def send(self, order: str) -> str:
        self._run.stdin.write(order + "\n")
        self._run.stdin.flush()
        return self._listen("done")

    def show(self) -> dict[tuple[str, ...], float]:
        said = self.send("show").splitlines(keepends=True)
        return read_metrics("".join(line for line in said if "[warning" not in line))

    def kill(self) -> None:
        self._run.kill()

    def _listen(self, last: str) -> str:
        said: list[str] = []
        for line in self._run.stdout:
            if line.strip() == last:
                return "".join(said)
            said.append(line)
        raise AssertionError("".join(said))


@pytest.fixture
def var(tmp_path: Path) -> Path:
    return tmp_path / "var"


@pytest.fixture(scope="module")
def program() -> Iterator[ForkedProgram]:
    with forked_program("tests.shared.observability.counting") as program:
        yield program


@pytest.fixture
def start_process(var: Path, program: ForkedProgram) -> Iterator[Callable[[], Process]]:
    """Start a process."""
    with ExitStack() as stack:

        def begin() -> Process:
            process = Process(program.run(str(var)))
            stack.callback(process.kill)
            return process

        yield begin


def files(var: Path) -> set[str]:
    return {path.name for path in folder(var).glob("*.db")}


def files_of(*processes: Process) -> set[str]:
    return {f"{kind}_{process.pid}.1.db" for process in processes for kind in metric_files.KINDS}


def folder(var: Path) -> Path:
    return var / "run" / "metrics"


def test_processes_of_a_host_count_together(start_process: Callable[[], Process], var: Path) -> None:
    web, twin, worker = start_process(), start_process(), start_process()
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
    assert files(var) == files_of(web, twin, worker)


def test_new_process_takes_over_the_files_of_a_dead_one(start_process: Callable[[], Process], var: Path) -> None:
    living = start_process()
    living.send("start pool")
    for number in range(2, 5):
        process = start_process()
        assert files(var) == files_of(living, process)
        process.send("start pool")
        process.send("refill 6")
        process.kill()
        told = living.show()
        assert (told[STARTS, "pool", "spec:1"], told[f"{REFILL}_count", "spec:1"]) == (number, number - 1)


def test_new_process_takes_over_files_without_a_pid(start_process: Callable[[], Process], var: Path) -> None:
    former = start_process()
    former.send("start pool")
    former.kill()
    for kind in metric_files.KINDS:
        (folder(var) / f"{kind}_{former.pid}.1.db").rename(folder(var) / f"{kind}_web.1.db")
    process = start_process()
    assert process.show()[STARTS, "pool", "spec:1"] == 1
    assert files(var) == files_of(process)


def test_processes_that_start_together_take_one_file_each(start_process: Callable[[], Process], var: Path) -> None:
    dead = [start_process() for _ in range(3)]
    for process in dead:
        process.send("start pool")
        process.kill()
    with ThreadPoolExecutor() as pool:
        started = [future.result() for future in [pool.submit(start_process) for _ in dead]]
    assert files(var) == files_of(*started)
    assert started[0].show()[STARTS, "pool", "spec:1"] == 3


def test_specs_beyond_the_limit_are_counted_as_other(start_process: Callable[[], Process], var: Path) -> None:
    first = start_process()
    for number in range(metrics.MAX_SPECS + 2):
        spec_id = f"{number}:".ljust(256, "x")
        first.send(f"start pool {spec_id}")
        first.send(f"refill 6 {spec_id}")
    assert {path.stat().st_size for path in folder(var).glob("*.db")} == {metric_files.FILE_BYTES}
    second = start_process()
    second.send("start pool late:1")
    second.send("start pool 7:".ljust(len("start pool ") + 256, "x"))
    told = second.show()
    assert told[STARTS, "pool", metrics.OTHER] == 3
    assert told[STARTS, "pool", "7:".ljust(256, "x")] == 2
    assert len({key[2] for key in told if key[0] == STARTS}) == metrics.MAX_SPECS + 1


def test_worker_serves_the_counts_of_its_host(start_process: Callable[[], Process]) -> None:
    worker, other = start_process(), start_process()
    with Port() as port:
        worker.send(f"serve {port}")
        assert "metrics_not_served" in other.send(f"serve {port}")
        other.send("refill 6")
        told = read_metrics(http.get(f"http://127.0.0.1:{port}/metrics").text)
    assert told[f"{REFILL}_count", "spec:1"] == 1


def test_unreadable_file_is_recreated(start_process: Callable[[], Process], var: Path) -> None:
    first = start_process()
    first.send("start pool")
    first.kill()
    readable = (folder(var) / f"counter_{first.pid}.1.db").read_bytes()
    for broken in (b"", b"\xff" * 64, readable[:20].ljust(4096, b"\0")):
        (path,) = folder(var).glob("counter_*.db")
        path.write_bytes(broken)
        second = start_process()
        second.send("start boot")
        assert second.show()[STARTS, "boot", "spec:1"] == 1
        second.kill()


@pytest.mark.parametrize("lost", ["", *metric_files.KINDS])
def test_removed_files_are_recreated(start_process: Callable[[], Process], var: Path, lost: str) -> None:
    web, twin, worker = start_process(), start_process(), start_process()
    for process in (web, twin):
        process.send("start pool")
    shutil.rmtree(folder(var)) if not lost else (folder(var) / f"{lost}_{web.pid}.1.db").unlink()
    assert web.show() == twin.show()
    before = web.show().get((STARTS, "pool", "spec:1"), 0)
    assert before == (1 if lost == "counter" else 0 if not lost else 2)
    web.send("start pool")
    twin.send("start pool")
    worker.send("refill 6")
    late = start_process()
    late.send("start boot")
    for process in (web, twin, worker, late):
        told = process.show()
        assert (told[STARTS, "pool", "spec:1"], told[STARTS, "boot", "spec:1"]) == (before + 2, 1)
        assert told[f"{REFILL}_count", "spec:1"] == 1


def test_unreadable_file_is_skipped(start_process: Callable[[], Process], var: Path) -> None:
    web, twin = start_process(), start_process()
    web.send("start pool")
    twin.send("start pool")
    path = folder(var) / f"counter_{twin.pid}.1.db"
    path.unlink()
    path.touch()
    assert web.show()[STARTS, "pool", "spec:1"] == 1


def test_process_that_can_no_longer_create_files_shows_its_counts(
    start_process: Callable[[], Process], var: Path
) -> None:
    process = start_process()
    process.send("start pool")
    shutil.rmtree(var / "run")
    (var / "run").write_text("in the way")
    process.send("start pool")
    assert process.show()[STARTS, "pool", "spec:1"] == 2
    (var / "run").unlink()
    process.send("start pool")
    assert process.show()[STARTS, "pool", "spec:1"] == 1


def test_files_are_allocated_at_their_creation(start_process: Callable[[], Process], var: Path) -> None:
    start_process()
    sizes = [path.stat().st_blocks * 512 for path in folder(var).glob("*.db")]
    assert sizes
    assert min(sizes) >= metric_files.FILE_BYTES


def test_process_that_creates_the_var_directory_lets_no_other_user_enter(
    start_process: Callable[[], Process], var: Path
) -> None:
    start_process()
    assert stat.S_IMODE(var.stat().st_mode) == 0o700


def test_process_that_cannot_create_files_counts_in_memory(start_process: Callable[[], Process], var: Path) -> None:
    (var / "run").mkdir(parents=True)
    (var / "run" / "metrics").write_text("in the way")
    process = start_process()
    assert "counting_in_memory" in process.said
    process.send("start pool")
    assert process.show()[STARTS, "pool", "spec:1"] == 1


# --- counts of transactions ----------------------------------------------------------------------------------------


def counted(spec_id: str) -> float:
    told = read_metrics(generate_latest(metrics.collector(Settings())).decode())
    return told.get((STARTS, "pool", spec_id), 0)


def start_and_fail(session: Session, spec_id: str) -> None:
    metrics.record_start(session, spec_id, StartSource.POOL)
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
            metrics.record_start(session, spec_id, StartSource.POOL)
        assert counted(spec_id) == 0
    assert counted(spec_id) == 1
