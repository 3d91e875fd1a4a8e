"""A pytest plugin that compiles all modules once for the processes of xdist. Remove it when it no longer saves time.

In a clean clone, all of xdist's processes rewrite the assertions of the same test modules at the same time. pytest has
no public function that rewrites a module without running it; `requirements.lock` pins the version of its private ones.
"""

import compileall
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import PYC_TAIL, _rewrite_test, _write_pyc, assertstate_key, get_cache_dir

from tests.services.directories import REPOSITORY

FOLDERS = ("api", "deploy", "shared", "tests", "worker")
# Modules for each request to a process of the pool.
CHUNK = 20
_CONFIGS: list[pytest.Config] = []


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile, before xdist starts its processes."""
    is_of_xdist = hasattr(session.config, "workerinput")
    if is_of_xdist or not session.config.getoption("numprocesses", 0) or sys.dont_write_bytecode:
        return
    compile_modules(session.config, [REPOSITORY / folder for folder in FOLDERS])


def compile_modules(config: pytest.Config, folders: list[Path]) -> None:
    """Compile the modules in these folders, and rewrite the assertions of those with tests and of conftest files."""
    outdated = [file for folder in folders for file in _list_outdated(folder)]
    if not outdated:
        return
    _CONFIGS.append(config)  # it can't be sent to a process, but a fork has it
    # An executor notices the death of a process; multiprocessing's pool would wait for ever.
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("fork")) as pool:
        list(pool.map(_compile, outdated, chunksize=CHUNK))


def _list_outdated(folder: Path) -> Iterator[Path]:
    for file in folder.rglob("*.py"):
        cached = cache_of(file)
        if not cached.exists() or cached.stat().st_mtime < file.stat().st_mtime:
            yield file


def cache_of(file: Path) -> Path:
    """Where Python or pytest keeps the compiled module."""
    ending = PYC_TAIL if _is_rewritten(file) else f".{sys.implementation.cache_tag}.pyc"
    return get_cache_dir(file) / f"{file.stem}{ending}"


def _is_rewritten(file: Path) -> bool:
    return file.name.startswith("test_") or file.name == "conftest.py"


def _compile(file: Path) -> None:
    config = _CONFIGS[-1]
    if not _is_rewritten(file):
        compileall.compile_file(file, quiet=2)
        return
    try:
        status, code = _rewrite_test(file, config)
    except (SyntaxError, ValueError):
        return  # pytest reports it
    cache_of(file).parent.mkdir(parents=True, exist_ok=True)
    _write_pyc(config.stash[assertstate_key], code, status, cache_of(file))
