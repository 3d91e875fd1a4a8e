"""A small repository with its own tests, for the tests of the runner."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.services.directories import REPOSITORY
from tests.stages import plan
from tests.stages.session import run_session

FLAKY = """
from pathlib import Path
seen = Path(__file__).with_name("seen")

def test_flaky():
    is_first = not seen.exists()
    seen.touch()
    assert not is_first, "it fails the first time"
"""


class Project:
    """A repository, and the output of its last run."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self._capsys = root, capsys
        self.record = root / "reruns.toml"
        self.directory = root / "log"
        (root / "pytest.ini").write_text("[pytest]\naddopts = -p xdist -p no:cacheprovider\n")
        self.said = ""

    def write(self, **files: str) -> None:
        """Add test files; `a__test_b` is `a/test_b.py`."""
        for name, content in files.items():
            path = self.root / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    def run(self, *stages: plan.Stage) -> int:
        """Run these stages in sequence, or all tests if no stage is passed."""
        groups = [[stage] for stage in stages or [self.stage()]]
        status = run_session(groups, self.directory, record=self.record, root=self.root)
        self.said = self._capsys.readouterr().out
        return status

    def stage(self, *arguments: str, name: str = "all") -> plan.Stage:
        """A stage with some of the tests."""
        # Importing the installed plugins takes longer than running these tests.
        environment = (("PYTHONPATH", str(REPOSITORY)), ("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1"))
        return replace(plan.select(name, *arguments), environment=environment)

    def has_run(self, file: str) -> bool:
        """Whether a test has created this file."""
        return (self.root / file).exists()


@pytest.fixture
def project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Project:
    """A project without tests."""
    return Project(tmp_path, capsys)
