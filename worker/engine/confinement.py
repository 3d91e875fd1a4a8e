"""Kernel and root file system restrictions of a sandbox's container, besides its resource limits (decision 55).

The seccomp profile `seccomp.json` lists what is allowed, and everything else fails with EPERM. It is this service's
own: without io_uring, vsock, keyrings, BPF, performance events, namespaces, mounts, and 32-bit programs.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# The profile as compact JSON, because each inspection of a container returns it.
SECCOMP = json.dumps(json.loads(Path(__file__).with_name("seccomp.json").read_text()), separators=(",", ":"))

# Labels by which an image says what it supports. Other images keep a writable root, and the engine's init.
READ_ONLY_LABEL = "agent-workspace.read-only-root"
INIT_LABEL = "agent-workspace.init"

# Folders in memory on a read-only root, with their fractions of the memory limit. Their content counts as memory.
FOLDERS = {"/tmp": 4, "/home/agent": 4, "/var/tmp": 16, "/run": 64}  # noqa: S108 (folders of a container)
# A file in memory takes about 1 KB of kernel memory, so all files of a folder take at most an eighth of its size.
BYTES_PER_INODE = 8 * 1024

# At most the limit of the engines themselves, because only some engines may raise their own limit.
OPEN_FILES = 16_384
# From 10 to 1000; other programs have 500. Engines that don't support I/O weights ignore it.
IO_WEIGHT = 100


def host_options(labels: Mapping[str, str], memory_bytes: int) -> dict[str, Any]:
    """The options of Docker's host configuration, in the names of its Python client."""
    options: dict[str, Any] = {
        "security_opt": ["no-new-privileges:true", f"seccomp={SECCOMP}"],
        "ulimits": [
            {"Name": "nofile", "Soft": OPEN_FILES, "Hard": OPEN_FILES},
            {"Name": "core", "Soft": 0, "Hard": 0},
        ],
        "blkio_weight": IO_WEIGHT,
        "init": INIT_LABEL not in labels,
    }
    if READ_ONLY_LABEL in labels:
        options |= {"read_only": True, "tmpfs": {path: _tmpfs(memory_bytes // part) for path, part in FOLDERS.items()}}
    return options


def _tmpfs(size: int) -> str:
    return f"rw,exec,nosuid,nodev,mode=1777,size={size},nr_inodes={max(64, size // BYTES_PER_INODE)}"
