"""Separate users for the processes, if root starts the service (decision 58).

The API and the workers share the database, the keys and the broker. Neither can write what root executes, or settings
that root reads. Only a worker reaches the engine, through the filter.
"""

import grp
import os
import pwd
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

from deploy.service.errors import ServiceError
from deploy.service.flower_login import password_file, read_password
from shared.backup import former_files
from shared.db.file_owner import GROUP, belongs_to_service
from shared.reasons import more
from shared.settings import Settings
from worker.settings import WorkerSettings

API, WORKER = "aw-api", "aw-worker"
# The users of the processes. The API's user gives no access beyond the API process's own: keys, database, broker.
OWNERS = {"broker": API, "flower": API, "web": API, "worker": WORKER}
# What a process needs at its start, besides the var directory.
PROBE = "import api, worker, shared.settings; from deploy.service.processes import find_procfile; open(find_procfile())"
DATABASE = "agent-workspace.db"


def engine_socket(var: Path) -> Path:
    """The engine filter's socket."""
    return var.absolute() / "run" / "engine.sock"


def has_own_users(settings: Settings) -> bool:
    """Whether the processes run as users of their own. If they should and can't, print the reason."""
    if os.geteuid() != 0 or os.environ.get("AW_OWN_USERS") != "1":
        return False
    settings.var_dir.absolute().parent.mkdir(parents=True, exist_ok=True)
    reason = _find_obstacle(settings)
    if reason:
        hint = more("all-processes-run-as-root")
        print(f"warning: all processes run as root, because {reason} {hint}", file=sys.stderr)
    return not reason


def has_assigned_files(settings: Settings) -> bool:
    """Whether the processes of this folder run as users of their own."""
    return os.geteuid() == 0 and settings.var_dir.is_dir() and belongs_to_service(settings.var_dir)


def assign_files(settings: Settings) -> None:
    """Give each user the files that its processes read and write, and no others. Safe beside a running service."""
    var = settings.var_dir.absolute()
    run = var / "run"
    for folder in filter(Path.exists, (var, run, Path("var"))):
        _assign(folder, "root", 0o750)
    for file in filter(Path.exists, (settings.secret_key_file, settings.metrics_key_file, Path("var/env"))):
        _assign(file, "root", 0o640)
    read_password(settings)
    _assign(password_file(settings), API, 0o600)
    _assign_all(var / "broker", API, 0o750)
    _assign_all(run / "workers", WORKER, 0o700)
    # The egress proxy's user enters this folder, and none above it.
    _assign_all(run / "egress", WORKER, 0o755, 0o644)
    for shared in (run / "metrics", var / "db"):
        _assign_all(shared, API, 0o2770)  # what either user adds belongs to the group
    _link(run / "broker.sock", Path("../broker/broker.sock"))
    if not settings.database_url:
        _move_database(var / DATABASE, var / "db" / DATABASE)


def _find_obstacle(settings: Settings) -> str:
    if settings.database_url.startswith("sqlite"):
        return "AW_DATABASE_URL names a file"
    if not WorkerSettings().docker_host.startswith("unix://"):
        return "AW_DOCKER_HOST is not a socket of this machine"
    if not all(folder.stat().st_mode & 0o001 for folder in settings.var_dir.absolute().parents):
        return f"other users may not enter the folders above {settings.var_dir.absolute()}"
    for user in (API, WORKER):
        # `env` starts Python with the user's rights only: setpriv itself may still enter root's folders.
        command = ["setpriv", f"--reuid={user}", f"--regid={GROUP}", "--clear-groups", "env", sys.executable]
        if subprocess.run([*command, "-c", PROBE], capture_output=True, check=False).returncode:
            return f"the user {user} does not exist, or may not read {Path.cwd()} and its Python"
    return ""


def _assign(path: Path, user: str, mode: int) -> None:
    shutil.chown(path, user, GROUP)
    path.chmod(mode)


def _assign_all(folder: Path, user: str, mode: int, mode_of_files: int = 0o660) -> None:
    """Change the owner of a folder and its files, including those that root has added since."""
    folder.mkdir(mode=0o700, exist_ok=True)
    assign_folder(folder, pwd.getpwnam(user).pw_uid, grp.getgrnam(GROUP).gr_gid, mode, mode_of_files)


def assign_folder(folder: Path, uid: int, gid: int, mode: int, mode_of_files: int = 0o660) -> None:
    """Give a folder and its files to a user, but no target of a link in it: the user could have added the link."""
    for _, _, names, descriptor in os.fwalk(folder):
        os.fchown(descriptor, uid, gid)
        os.fchmod(descriptor, mode)
        for name in names:
            with suppress(OSError):  # a symbolic link, a socket, or gone
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptor)
                with closing(os.fdopen(file)):
                    _assign_single_file(file, uid, gid, mode_of_files)


def _assign_single_file(file: int, uid: int, gid: int, mode: int) -> None:
    status = os.fstat(file)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
        os.fchown(file, uid, gid)
        os.fchmod(file, mode)


def _link(path: Path, target: Path) -> None:
    """Replace a file by a link atomically, so that the path always exists."""
    draft = path.with_suffix(".link")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target)
    draft.replace(path)


def _move_database(path: Path, target: Path) -> None:
    """Move SQLite's file to a folder that the processes may write to. Its path remains, as a link.

    Raises:
        ServiceError: another program has the database open.
    """
    if path.is_symlink():
        return
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    if path.with_name(f"{path.name}-wal").exists():
        text = f"{path} is to be moved, but another program uses it: repeat this when that has ended"
        raise ServiceError(text, "a-database-is-to-be-moved-but-another-program-uses-it")
    _assign(path, API, 0o660)
    if not (target.exists() and target.samefile(path)):  # the same file: a crash came before the link
        # Files of a previous database are in the way if an operator has moved away only the link to it.
        former_files.keep(target, former_files.DATABASE)
        target.hardlink_to(path)
    _link(path, Path(target.parent.name, target.name))
