"""The file by which a worker tells other processes of its machine that it takes jobs."""

from pathlib import Path

from shared.settings import Settings


def readiness_file(settings: Settings, process: str) -> Path:
    """The file that exists once a worker has sent its node's heartbeat, and takes jobs. A restart removes it first."""
    return settings.workers_dir / f"{process}.works"
