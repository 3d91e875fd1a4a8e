"""An engine in memory for the backup of files."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from worker.engine.protocol import ContainerState, ContainerStatus


class EngineInFolders:
    """An engine whose volumes are folders."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = ContainerState.ABSENT

    def data_root(self) -> Path:
        return self.root

    def observe(self, _name: str) -> ContainerStatus:
        return ContainerStatus(self.state)

    def find_folder(self, name: str) -> Path | None:
        return self.root / name / "_data" if (self.root / name).exists() else None

    def make_folder(self, name: str, _labels: Mapping[str, str]) -> Path:
        (self.root / name / "_data").mkdir(parents=True, exist_ok=True)
        return self.root / name / "_data"

    def remove(self, name: str) -> None:
        shutil.rmtree(self.root / name, ignore_errors=True)
