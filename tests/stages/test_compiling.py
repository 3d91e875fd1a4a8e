"""Modules that are compiled beforehand are those that pytest and Python would compile."""

import importlib.util
import os
import signal
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest.assertion.rewrite import _read_pyc

from tests.stages.compiling import cache_of, compile_modules


def test_compiled_modules_are_used_until_they_change(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    tests, other = tmp_path / "test_one.py", tmp_path / "other.py"
    tests.write_text("def test_one():\n    assert 1\n")
    other.write_text("NUMBER = 1\n")
    compile_modules(pytestconfig, [tmp_path])
    assert _read_pyc(tests, cache_of(tests)) is not None
    assert str(cache_of(other)) == importlib.util.cache_from_source(str(other))
    before = [cache_of(file).stat().st_mtime_ns for file in (tests, other)]
    compile_modules(pytestconfig, [tmp_path])
    assert [cache_of(file).stat().st_mtime_ns for file in (tests, other)] == before
    changed = cache_of(tests).stat().st_mtime + 2
    tests.write_text("def test_one():\n    assert 2\n")
    os.utime(tests, (changed, changed))
    compile_modules(pytestconfig, [tmp_path])
    assert _read_pyc(tests, cache_of(tests)) is not None


def test_module_that_cannot_be_compiled_is_left_to_pytest(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    broken = tmp_path / "test_broken.py"
    broken.write_text("def\n")
    compile_modules(pytestconfig, [tmp_path])
    assert not cache_of(broken).exists()


def test_death_of_a_process_ends_the_compilation(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("def test_one():\n    assert 1\n")
    deadly: Any = SimpleNamespace(getini=lambda _: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(BrokenProcessPool):
        compile_modules(deadly, [tmp_path])
