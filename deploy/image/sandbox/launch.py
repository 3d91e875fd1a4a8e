"""Start the agent server so that the agents' programs, which have its user id, can't read, trace or replace it.

A program without rights can't read the memory or environment of a process that is not dumpable, nor trace it. The
interpreter's file can't be read, so the process is not dumpable from its first instruction; the call below ensures it
again. The configuration contains keys: it is removed from the file system before any tool runs.
"""

import ctypes
import gc
import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

CONFIG = "OPENHANDS_AGENT_SERVER_CONFIG_PATH"
PR_SET_DUMPABLE = 4


def main() -> None:
    """Protect this process, read and empty its configuration file, and run the agent server in it."""
    if ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0):
        sys.exit("launch: the kernel does not let this process protect itself")
    if path := os.environ.get(CONFIG):
        # The server reads the path several times at boot; the name means nothing to other processes.
        os.environ[CONFIG] = take(path)
    serve = load_server()
    serve()


def take(path: str) -> str:
    """Move a file's content into this process's memory; the path by which only this process reads it.

    Exit if there is no content, or if the file can't be removed: the agents' programs would read the keys.
    """
    restore_access(Path(path).parent)
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        content = b""
    if not content:
        # Without keys the server would answer all requests. The service writes the file before each start.
        sys.exit(f"launch: {path} is missing or empty; the service writes it before each start")
    memory = os.memfd_create("agent-server-configuration")
    with open(memory, "wb", closefd=False) as kept:
        kept.write(content)
    try:
        Path(path).unlink()
    except OSError as error:
        sys.exit(f"launch: {path} can't be removed, and contains keys: {error}")
    with suppress(OSError):
        # Empty, in its place: a disk without a free inode must not keep the sandbox from its next start.
        Path(path).touch(0o444, exist_ok=False)
    return f"/proc/self/fd/{memory}"


def load_server() -> Callable[[], None]:
    """Import the server without collecting garbage: what it imports stays, and each collection would look at all of it.

    A boot takes a sixth less processor time, and the process 18 MB more memory.
    """
    gc.disable()
    from openhands.agent_server.__main__ import main  # noqa: PLC0415 (not before this process is protected)

    gc.freeze()
    gc.enable()
    serve: Callable[[], None] = main
    return serve


def restore_access(folder: Path) -> None:
    """Give this user all rights on its folder again: an agent's program, which has the same user, may have taken them.

    Without them, the file in it could not be removed.
    """
    mode = stat.S_IMODE(folder.stat().st_mode)
    with suppress(PermissionError):  # another user's folder
        folder.chmod(mode | stat.S_IRWXU)


if __name__ == "__main__":
    main()
