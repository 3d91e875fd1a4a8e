"""Leases of dead workers are freed immediately; those of running or stalled workers are kept."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.clock import after
from shared.errors import Unavailable
from shared.models import Conversation, Sandbox, StartTask
from shared.states import Desired, Status
from tests.factories import ApiUser, make_conversation, make_sandbox, make_start_task
from tests.rows import all_rows
from tests.services.directories import REPOSITORY
from tests.worker.scenarios import row
from worker.context import WorkerContext
from worker.loops.dead_workers import free_leases, lock_liveness_file

OWNER = "node-a:1:abc"
LIVE = """
import sys, time
from pathlib import Path
from worker.loops.dead_workers import lock_liveness_file
liveness_file = lock_liveness_file(Path(sys.argv[1]), sys.argv[2])
print("alive", flush=True)
time.sleep(600)
"""
HELD: dict[str, Any] = {"lease_owner": OWNER, "lease_until": after(600), "fence": 7, "due_at": None}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "run" / "workers"


@pytest.fixture
def worker(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a liveness file."""
    command = [sys.executable, "-c", LIVE, str(directory), OWNER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        assert process.stdout
        assert process.stdout.readline() == "alive\n"
        yield process
        process.kill()


def end(worker: subprocess.Popen[str]) -> None:
    worker.send_signal(signal.SIGKILL)
    worker.wait()


def held(context: WorkerContext, user: ApiUser, **columns: Any) -> str:
    return make_sandbox(context.database, user, **{"status": Status.STARTING, **HELD, **columns}).id


def is_free(context: WorkerContext, sandbox_id: str) -> bool:
    found = row(context, Sandbox, sandbox_id)
    assert (
        (found.lease_until is None) == (found.lease_owner is None) == (found.fence == 8) == (found.due_at is not None)
    )
    return found.lease_until is None


def test_leases_are_freed_when_their_holder_is_killed(
    context: WorkerContext, user: ApiUser, directory: Path, worker: subprocess.Popen[str]
) -> None:
    sandbox_id = held(context, user)
    free_leases(context, directory)
    assert not is_free(context, sandbox_id)
    worker.send_signal(signal.SIGSTOP)
    free_leases(context, directory)
    assert not is_free(context, sandbox_id)
    end(worker)
    free_leases(context, directory)
    assert is_free(context, sandbox_id)
    assert list(directory.iterdir()) == []
    free_leases(context, directory)
    assert is_free(context, sandbox_id), "the fence must be incremented by one only"


def test_leases_of_every_kind_are_freed(context: WorkerContext, user: ApiUser, directory: Path) -> None:
    sandbox = make_sandbox(context.database, user)
    task = make_start_task(context.database, user, sandbox, **HELD)
    conversation = make_conversation(context.database, user, sandbox, **HELD)
    lock_liveness_file(directory, OWNER).close()
    free_leases(context, directory)
    for found in (row(context, StartTask, task.id), row(context, Conversation, conversation.id)):
        assert (found.lease_until, found.fence) == (None, 8)


def test_leases_of_another_worker_are_kept(context: WorkerContext, user: ApiUser, directory: Path) -> None:
    sandbox_id = held(context, user, lease_owner="node-a:1:abcd")
    lock_liveness_file(directory, OWNER).close()
    free_leases(context, directory)
    assert not is_free(context, sandbox_id)


@pytest.mark.parametrize("desired", list(Desired))
@pytest.mark.parametrize("ready", [True, False])
def test_start_that_may_overlap_with_a_stop_waits(
    context: WorkerContext, user: ApiUser, directory: Path, ready: bool, desired: Desired
) -> None:
    sandbox_id = held(context, user, desired=desired, ready_at=after(-60) if ready else None)
    lock_liveness_file(directory, OWNER).close()
    free_leases(context, directory)
    assert is_free(context, sandbox_id) == (not ready or desired != Desired.RUNNING)


@pytest.mark.parametrize("folder", ["file", "file/workers"])
def test_worker_without_a_file_of_its_own_says_why(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match=rf"no file can be created in {tmp_path}/{folder}: (File exists|Not a dir)"):
        lock_liveness_file(tmp_path / folder, OWNER)


def test_leases_are_kept_without_a_directory_of_workers(context: WorkerContext, user: ApiUser, directory: Path) -> None:
    held(context, user)
    before = all_rows(context.database)
    free_leases(context, directory)
    assert all_rows(context.database) == before
    assert not directory.exists()
