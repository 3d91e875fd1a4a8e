"""A mount namespace with the users that `make run` creates, which does not change this machine.

In the namespace, other users may enter the directories of the code and of Python.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.services.directories import REPOSITORY

GROUP, API, WORKER, DOOR, EGRESS = 64100, 64101, 64102, 64103, 64104
# Arguments: a directory for the mounts; closed directories, each followed by the needed paths in it; "--"; a command.
SCRIPT = """
set -eu
stage=$1; shift
cp /etc/passwd /etc/group "$stage"
sed -i '/^aw/d' "$stage/passwd" "$stage/group"
echo "aw:x:{group}:" >>"$stage/group"
echo "aw-door:x:{door}:" >>"$stage/group"
echo "aw-egress:x:{egress}:" >>"$stage/group"
echo "aw-api:x:{api}:{group}::/nonexistent:/usr/sbin/nologin" >>"$stage/passwd"
echo "aw-worker:x:{worker}:{group}::/nonexistent:/usr/sbin/nologin" >>"$stage/passwd"
echo "aw-door:x:{door}:{door}::/nonexistent:/usr/sbin/nologin" >>"$stage/passwd"
echo "aw-egress:x:{egress}:{egress}::/nonexistent:/usr/sbin/nologin" >>"$stage/passwd"
mount --bind "$stage/passwd" /etc/passwd
mount --bind "$stage/group" /etc/group
number=0
while [ "$1" != -- ]; do
    closed=$1; shift
    kept=$((number + 1))
    for path in $1; do
        number=$((number + 1)); mkdir "$stage/$number"; mount --bind "$path" "$stage/$number"
    done
    mount -t tmpfs -o mode=755 closed "$closed"
    for path in $1; do
        mkdir -p "$path"; mount --bind "$stage/$kept" "$path"; kept=$((kept + 1))
    done
    shift
done
shift
cd "$REPOSITORY"
exec "$@"
"""


def launcher(stage: Path) -> list[str]:
    """The prefix of a command that runs in such a namespace; `stage` is an empty directory."""
    script = SCRIPT.format(group=GROUP, api=API, worker=WORKER, door=DOOR, egress=EGRESS)
    variables = [f"REPOSITORY={REPOSITORY}", f"PYTHONPATH={REPOSITORY}"]
    return ["unshare", "--mount", "env", *variables, "bash", "-c", script, "bash", str(stage), *_closed(), "--"]


def run_as(uid: int, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the system as a user, with the service's group."""
    identity = [f"--reuid={uid}", f"--regid={GROUP if uid in (API, WORKER) else uid}", "--clear-groups"]
    return subprocess.run(
        ["setpriv", *identity, *command], capture_output=True, text=True, check=False, cwd="/", timeout=60
    )


def _closed() -> Iterator[str]:
    """The directories that other users may not enter, each followed by the needed paths in it."""
    needed = {Path(path).resolve() for path in (sys.base_prefix, sys.prefix, REPOSITORY)}
    folders = {folder for path in needed if (folder := _first_closed([*reversed(path.parents), path]))}
    for folder in sorted(folders):
        yield str(folder)
        yield " ".join(str(path) for path in sorted(needed) if path.is_relative_to(folder))


def _first_closed(folders: Sequence[Path]) -> Path | None:
    return next((folder for folder in folders if not folder.stat().st_mode & 0o001), None)
