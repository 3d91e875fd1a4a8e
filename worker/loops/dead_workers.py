"""Leases of workers that died: freed at once where the kernel can tell, and not only when they run out.

Each worker holds the lock on a file of its own in the var directory. The kernel lets go of it with the process, however
that ends, and not while it merely stands still. So whoever can take such a lock knows that its holder is dead.
"""

import fcntl
import os
import tempfile
from pathlib import Path
from typing import IO, Any

import structlog
from sqlalchemy import or_
from sqlmodel import col

from shared.clock import now
from shared.ids import new_id
from shared.leasing import leases
from shared.leasing.leases import Freed
from shared.models import Conversation, Sandbox, StartTask
from shared.states import Desired
from worker.context import WorkerContext

log = structlog.get_logger()

SUFFIX = ".worker"
# An engine finishes what a dead client asked for, and a stop takes long enough to meet the start that comes after. Only
# what was ready once is stopped: such a sandbox waits until the lease runs out.
SAFE = or_(col(Sandbox.ready_at).is_(None), col(Sandbox.desired) != Desired.RUNNING)


def show_life(directory: Path, owner: str) -> IO[str]:
    """Lock a file that names the owner of leases, for as long as the process lives and the file is not closed."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=directory, prefix=".")
    file = os.fdopen(handle, "w")
    file.write(owner)
    file.flush()
    fcntl.flock(file, fcntl.LOCK_EX)
    Path(draft).rename(directory / f"{new_id()}{SUFFIX}")  # locked before anybody sees it
    return file


def free_leases(context: WorkerContext, directory: Path) -> None:
    """Free what the dead ones of this directory held."""
    for path in directory.glob(f"*{SUFFIX}"):
        if file := _take(path):
            with file:
                is_complete = _free(context, file.read())
            if is_complete:
                path.unlink(missing_ok=True)


def _take(path: Path) -> IO[str] | None:
    """The file, locked; None if its process lives, or another worker was quicker."""
    try:
        file = path.open()
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _free(context: WorkerContext, owner: str) -> bool:
    """Free what the owner held; whether that is all."""
    freed = [_free_rows(context, table, owner) for table in (Sandbox, StartTask, Conversation)]
    log.info("worker_dead", owner=owner, freed=sum(one.number for one in freed))
    return all(one.is_complete for one in freed)


def _free_rows(context: WorkerContext, table: type[Any], owner: str) -> Freed:
    with context.database.transaction() as session:
        return leases.expire_leases_of(session, table, owner, now(), where=SAFE if table is Sandbox else None)
