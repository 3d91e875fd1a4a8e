"""The machine of a benchmark, and the resources that its processes used."""

import os
import platform
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    """Describe the machine, without which figures cannot be compared."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = next((line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")), "?")
    return {
        "processors": os.cpu_count(),
        "model": model,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
    }


def memory_bytes(pid: int) -> int:
    """The resident memory of a process, including shared pages."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")
