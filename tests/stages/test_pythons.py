"""The unit tests run with each supported Python, for each change or at night."""

import sys
import tomllib
from pathlib import Path

import pytest

from tests.services.directories import REPOSITORY
from tests.stages import plan, pythons

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
OLDEST = "3.11"
IMPOSTOR = "#!/bin/sh\necho 'pyenv: command not found' >&2; exit 127\n"


def test_every_supported_python_is_tested() -> None:
    listed = [line.rpartition(" ")[2] for line in PROJECT["project"]["classifiers"] if "Python :: 3." in line]
    assert listed == [OLDEST, *plan.OTHER_PYTHONS]
    assert PROJECT["project"]["requires-python"] == f">={OLDEST}"
    assert PROJECT["tool"]["mypy"]["python_version"] == OLDEST
    assert f"Python {', '.join(listed[:-1])} or {listed[-1]}" in (REPOSITORY / "README.md").read_text()


def test_nightly_run_tests_with_each_python() -> None:
    stages = [stage for group in plan.nightly()["pythons"] for stage in group]
    tested = [stage.command[0] for stage in stages if stage.is_pytest and "unit" in stage.command]
    assert tested == [str(pythons.environment_of(version) / "bin" / "python") for version in plan.OTHER_PYTHONS]


def test_broken_python_shim_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = "{}.{}".format(*sys.version_info)
    for path, content in (("bin", IMPOSTOR), (f"versions/{own}.7/bin", f'#!/bin/sh\nexec {sys.executable} "$@"\n')):
        program = tmp_path / path / f"python{own}"
        program.parent.mkdir(parents=True)
        program.write_text(content)
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert pythons.find_python(own) == str(program)


def test_missing_python_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pythons, "UV", "/bin/false")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(SystemExit, match=r"no Python 3\.0 "):
        pythons.find_python("3.0")
