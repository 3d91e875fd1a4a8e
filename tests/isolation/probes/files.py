"""Probes of files: find, read, write and link them."""

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Iterator

from tests.isolation.probes.base import Outcome, agent_server


def find_files(names: list[str], roots: list[str]) -> Outcome:
    """Find files with these names below these folders, on the same file system."""
    found = []
    for root in roots:
        with contextlib.suppress(OSError):
            found += [path for path in _walk(root, os.stat(root).st_dev) if os.path.basename(path) in names]
    return bool(found), f"{found[:5]}"


def find_sockets(roots: list[str]) -> Outcome:
    """Find a unix socket of another program. One is enough: an engine's folder has all files of its containers."""
    sockets = (path for root in roots for path in _walk(root, None) if stat.S_ISSOCK(os.lstat(path).st_mode))
    found = next(sockets, None)
    return found is not None, f"{found}"


def read_file(path: str, contains: str = "") -> Outcome:
    """Read a file that contains this text."""
    with open(path, "rb") as file:
        text = file.read(1_000_000)
    return contains.encode() in text, f"{len(text)} bytes"


def write_file(path: str) -> Outcome:
    """Create a file in another user's folder, or open an existing one for writing."""
    if os.path.isdir(path):
        path = os.path.join(path, f"attack-{os.getpid()}")
        with open(path, "w") as file:
            file.write("x")
        os.unlink(path)
    else:
        with open(path, "r+b"):
            pass
    return True, "written"


def list_folder(path: str) -> Outcome:
    """List the names in a folder."""
    return bool(names := os.listdir(path)), f"{names[:5]}"


def needle_in_environment(needle: str, process: int = 0) -> Outcome:
    """Find a text in the environment of a process; 0: of every readable process."""
    processes = [str(process)] if process else [one for one in os.listdir("/proc") if one.isdigit()]
    found = []
    for one in processes:
        with contextlib.suppress(OSError), open(f"/proc/{one}/environ", "rb") as file:
            if needle.encode() in file.read():
                found.append(one)
    return bool(found), f"in {found}"


def needle_in_arguments(needle: str) -> Outcome:
    """Find a text in the arguments of a process."""
    found = []
    for one in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{one}/cmdline", "rb") as file:
            if needle.encode() in file.read() and int(one) != os.getpid() and int(one) != os.getppid():
                found.append(one)
    return bool(found), f"in {found}"


def needle_digest_in_memory(digest: str, length: str, prefix: str) -> Outcome:
    """Find a key in the memory of the agent server. The probe knows only its digest, so it does not find itself."""
    server = agent_server()
    pattern = re.compile(re.escape(prefix).encode() + rb"[\w-]{%d}" % (int(length) - len(prefix)))
    with open(f"/proc/{server}/maps") as maps, open(f"/proc/{server}/mem", "rb", 0) as memory:
        for line in maps:
            if "rw-p" not in line:
                continue
            first, last = (int(one, 16) for one in line.split()[0].split("-"))
            with contextlib.suppress(OSError, ValueError, OverflowError):
                memory.seek(first)
                for found in pattern.finditer(memory.read(min(last - first, 256 * 1024 * 1024))):
                    if hashlib.sha256(found.group()).hexdigest() == digest:
                        return True, f"in process {server}"
    return False, "not found"


def open_memory(flags: str, process: str = "") -> Outcome:
    """Open the memory of the agent server, or of another process."""
    path = f"/proc/{process or agent_server()}/mem"
    os.close(os.open(path, os.O_RDONLY if flags == "r" else os.O_RDWR))
    return True, "opened"


def read_of_server(name: str, process: str = "") -> Outcome:
    """Read a file of the agent server in /proc, or of another process."""
    with open(f"/proc/{process or agent_server()}/{name}", "rb") as file:
        return bool(file.read(100)), "read"


def list_descriptors(process: str = "") -> Outcome:
    """List the open files of the agent server, or of another process."""
    folder = f"/proc/{process or agent_server()}/fd"
    links = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]
    return bool(links), f"{len(links)}"


def plant_link(path: str, target: str) -> Outcome:
    """Create a symbolic link by which a program outside might read one of its own files."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    os.symlink(target, path)
    return True, "planted"


def hard_link(source: str, path: str) -> Outcome:
    """Create a hard link to a file of another owner."""
    os.link(source, path)
    os.unlink(path)
    return True, "linked"


def write_into_process_1(text: str) -> Outcome:
    """Write a line to the container's log, as if its server had written it."""
    with open("/proc/1/fd/1", "w") as file:
        file.write(text + "\n")
    return True, "written"


def _walk(root: str, device: int | None) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        if device is not None:
            folders[:] = [one for one in folders if _device(os.path.join(folder, one)) == device]
        yield from (os.path.join(folder, one) for one in files)


def _device(path: str) -> int:
    try:
        return os.lstat(path).st_dev
    except OSError:
        return -1
