"""The user as which root opens SQLite's file, if the service's processes run as separate users (decision 58).

Their group may write to the file's folder, so each of them could replace the file by a link. SQLite follows it: root
would create and write a file elsewhere. So root opens the file with the rights of the folder's owner.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import URL, make_url

# The group of the service's users.
GROUP = "aw"
# Max links from the configured path to the file.
MAX_LINKS = 8


@contextmanager
def acting_as_owner(database_url: str | URL) -> Iterator[None]:
    """Open and use the database with its owner's rights for the length of the block. For commands with one thread."""
    owner = _find_owner(database_url) if os.geteuid() == 0 else None
    if owner is None:
        yield
        return
    groups, group = os.getgroups(), os.getegid()
    try:
        os.setgroups([])
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)
        if not all(os.access(path, os.R_OK, effective_ids=True) for path in (sys.executable, __file__)):
            _become_root(groups, group)  # as such, no process of the service runs: all run as root
        yield
    finally:
        _become_root(groups, group)


@contextmanager
def acting_as_caller() -> Iterator[None]:
    """Read and write files with the caller's rights again, within a block of `acting_as_owner`."""
    caller, user, _ = os.getresuid()
    os.seteuid(caller)
    try:
        yield
    finally:
        os.seteuid(user)


def belongs_to_service(folder: Path) -> bool:
    """Whether the group of the service's users is the group of a folder."""
    with suppress(KeyError):  # a group without a name
        return folder.group() == GROUP
    return False


def _become_root(groups: list[int], group: int) -> None:
    os.seteuid(0)
    os.setegid(group)
    os.setgroups(groups)


def _find_owner(database_url: str | URL) -> os.stat_result | None:
    """The status of the first folder on the way to the file that belongs to another user of the service, not to root.

    A link in a folder of root's is the service's own, and leads to the next folder. Any later link is not followed.
    """
    url = make_url(database_url)
    if url.get_backend_name() != "sqlite" or not url.database:
        return None
    path = Path(url.database).absolute()
    for _ in range(MAX_LINKS):
        if not path.parent.is_dir():
            return None
        folder = path.parent.stat()
        if folder.st_uid != 0:
            return folder if belongs_to_service(path.parent) else None
        if not path.is_symlink():
            return None
        path = path.parent / path.readlink()
    return None
