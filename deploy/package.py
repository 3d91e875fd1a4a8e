"""The build of the package. `pyproject.toml` names this class."""

import shutil
from pathlib import Path

from setuptools.command.build_py import build_py  # type: ignore[import-untyped]


class CleanBuild(build_py):  # type: ignore[misc]
    """Copies the modules of this version, and no others, into the package.

    Setuptools packs everything in its folder, in which an earlier build has left the modules of its version.
    """

    def run(self) -> None:
        """Empty the folder, and copy the modules into it. An editable installation has no such folder."""
        if not self.editable_mode and Path(self.build_lib).exists():
            shutil.rmtree(self.build_lib)
        super().run()
