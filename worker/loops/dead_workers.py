"""Leases of dead workers: freed immediately on the same machine, instead of when they expire.

Each worker locks its own file in the var directory. The kernel releases the lock when the process ends, however it
ends, and keeps it while the process is only stalled. A worker that can take such a lock knows that its owner is dead.
"""

import fcntl
import os
import tempfile
from pathlib import Path
from typing import IO, Any

import structlog

from shared.clock import now
from shared.errors import Unavailable
from shared.ids import new_id
from shared.leasing import renewals
from shared.leasing.renewals import FreedLeases
from shared.models import Conversation, Sandbox, StartTask
from worker.context import WorkerContext

log = structlog.get_logger()

SUFFIX = ".worker"


def lock_liveness_file(directory: Path, owner: str) -> IO[str]:
    """Create and lock a file that names the owner of leases. The lock ends with the process or when it is closed.

    Raises:
        Unavailable: the file can't be created.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=directory, prefix=".")
        file = os.fdopen(handle, "w")
        file.write(owner)
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        Path(draft).rename(directory / f"{new_id()}{SUFFIX}")  # locked before another worker can open it
    except OSError as error:
        raise Unavailable(f"no file can be created in {directory}: {error.strerror}") from None
    return file


def free_leases(context: WorkerContext, directory: Path) -> None:
    """Free the leases of the dead workers in this directory."""
    for path in directory.glob(f"*{SUFFIX}"):
        if file := _take(path):
            with file:
                is_complete = _free(context, file.read())
            if is_complete:
                path.unlink(missing_ok=True)


def _take(path: Path) -> IO[str] | None:
    """Open and lock the file; None if its process is alive or another worker has locked it."""
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
    """Free the owner's leases. Returns whether none is left."""
    freed = [_free_rows(context, table, owner) for table in (Sandbox, StartTask, Conversation)]
    log.info("worker_dead", owner=owner, freed=sum(rows.number for rows in freed))
    return all(rows.is_complete for rows in freed)


def _free_rows(context: WorkerContext, table: type[Any], owner: str) -> FreedLeases:
    with context.database.transaction() as session:
        return renewals.expire_leases_of(session, table, owner, now())
