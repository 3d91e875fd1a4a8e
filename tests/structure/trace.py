"""A pytest plugin that records the product's files that a test passes through, for docs/reports/structure.md.

    python -m pytest -n 0 -p tests.structure.trace --trace-files var/log/files.txt FILE::TEST

It writes the files in the order of their first call during the test itself, in every thread. It needs no
other file of the tree, so an earlier revision can be measured, too.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

REPOSITORY = Path(__file__).parents[2]
PARTS = tuple(f"{REPOSITORY / part}/" for part in ("api", "worker", "shared"))


@contextmanager
def traced() -> Iterator[dict[str, None]]:
    """The files whose functions run, in this thread and in those that start in the block. Clear it at any time."""
    passed: dict[str, None] = {}

    def record(frame: FrameType, event: str, _argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PARTS):
            passed.setdefault(name.removeprefix(f"{REPOSITORY}/"))

    before = sys.getprofile(), threading.getprofile()
    threading.setprofile(record)
    sys.setprofile(record)
    try:
        yield passed
    finally:
        sys.setprofile(before[0])
        threading.setprofile(before[1])


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the file to write."""
    parser.addoption("--trace-files", type=Path, help="write the product's files that the tests pass, in order")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Watch the threads that fixtures start, and this one."""
    with traced() as item.stash[PASSED]:
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Forget the files that the set-up passed through, and write those that the test passes through."""
    passed = item.stash[PASSED]
    passed.clear()
    yield
    if name := item.config.option.trace_files:
        path = item.config.rootpath / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{name}\n" for name in passed))


PASSED = pytest.StashKey[dict[str, None]]()
