"""Probes of limits: each takes as much of a resource as it can, and releases it."""

import errno
import mmap
import os
import resource
import shutil
import signal
import threading

from tests.isolation.probes.base import Outcome

PARALLEL = 1
PROBE_SECONDS = 120.0
MEGABYTE = 1024 * 1024


def take_memory(megabytes: int, by: str = "anonymous") -> Outcome:
    """Take memory of one kind. The kernel kills a process that exceeds its limit."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # so that the kernel chooses this process, and not the agent server
    descriptor = -1
    if by == "memfd":
        descriptor = os.memfd_create("memory")
        os.ftruncate(descriptor, megabytes * MEGABYTE)
    area = mmap.mmap(descriptor, megabytes * MEGABYTE, mmap.MAP_PRIVATE if by == "anonymous" else mmap.MAP_SHARED)
    for position in range(0, megabytes * MEGABYTE, 4096):
        area[position] = 1
    return True, f"{megabytes} MB"


def take_processes(count: int) -> Outcome:
    """Start waiting processes."""
    children: list[int] = []
    try:
        for _ in range(count):
            child = os.fork()
            if child == 0:
                signal.pause()
            children.append(child)
    except BlockingIOError:
        return False, f"refused after {len(children)}"
    finally:
        _end(children)
    return True, f"{count} processes"


def take_zombies(count: int) -> Outcome:
    """Create zombie processes."""
    children: list[int] = []
    try:
        for _ in range(count):
            child = os.fork()
            if child == 0:
                os._exit(0)
            children.append(child)
    except BlockingIOError:
        return False, f"refused after {len(children)}"
    finally:
        for child in children:
            os.waitpid(child, 0)
    return True, f"{count} zombies"


def take_threads(count: int) -> Outcome:
    """Start threads."""
    end = threading.Event()
    threads = []
    threading.stack_size(65_536)
    try:
        for _ in range(count):
            thread = threading.Thread(target=end.wait, daemon=True)
            thread.start()
            threads.append(thread)
    except RuntimeError:
        return False, f"refused after {len(threads)}"
    finally:
        end.set()
    return True, f"{count} threads"


def take_disk(folder: str, megabytes: int) -> Outcome:
    """Allocate disk space without writing it."""
    path = os.path.join(folder, f"attack-{os.getpid()}")
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, megabytes * MEGABYTE)
    finally:
        os.close(descriptor)
        os.unlink(path)
    return True, f"{megabytes} MB"


def take_inodes(folder: str, count: int) -> Outcome:
    """Create empty files."""
    path = os.path.join(folder, f"attack-{os.getpid()}")
    os.mkdir(path)
    made = 0
    try:
        for number in range(count):
            os.mknod(f"{path}/{number}")
            made += 1
    except OSError as error:
        return False, f"{errno.errorcode[error.errno or 0]} after {made}"
    finally:
        shutil.rmtree(path, ignore_errors=True)
    return True, f"{count} files"


def lacks_limit(paths: list[str], unlimited: list[str]) -> Outcome:
    """Find a cgroup without a limit: the first of these files that exists has one of the values for no limit."""
    for path in paths:
        if os.path.exists(path):
            with open(path) as file:
                value = file.read().strip()
            return any(value.startswith(one) for one in unlimited if one) or (not value and "" in unlimited), value
    raise FileNotFoundError(errno.ENOENT, paths[0])


def may_open(count: int) -> Outcome:
    """Check whether a process may open more files than `count`."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return hard > count or hard == resource.RLIM_INFINITY, f"at most {hard}"


def _end(children: list[int]) -> None:
    for child in children:
        os.kill(child, signal.SIGKILL)
    for child in children:
        os.waitpid(child, 0)
