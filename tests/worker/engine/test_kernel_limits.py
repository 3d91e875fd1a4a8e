"""Limits of the kernel: they are raised to what sandboxes need, and never lowered."""

import re
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from worker.engine import kernel_limits
from worker.engine.kernel_limits import AT_LEAST, OF_SOCKETS, UNLIMITED, find_low, raise_low

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "nodes.md"
GIBIBYTE = 2**30 // 4096


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a kernel's defaults, whose control groups do not count the memory of sockets."""
    monkeypatch.setattr(kernel_limits, "VERSION_2", tmp_path / "controllers")
    for name in AT_LEAST:
        write(tmp_path, name, "128\n")
    for name in OF_SOCKETS:
        write(tmp_path, name, "100\t200\t900000000\n")
    return tmp_path


def path(root: Path, name: str) -> Path:
    return root.joinpath(*name.split("."))


def write(root: Path, name: str, text: str) -> None:
    path(root, name).parent.mkdir(parents=True, exist_ok=True)
    path(root, name).write_text(text)


def read(root: Path, name: str) -> list[int]:
    return [int(number) for number in path(root, name).read_text().split()]


def test_low_limits_are_raised(root: Path) -> None:
    assert {each.name for each in find_low(root)} == set(AT_LEAST)
    raise_low(root)
    assert {name: read(root, name) for name in AT_LEAST} == {name: [least] for name, least in AT_LEAST.items()}
    assert find_low(root) == []


def test_higher_limits_are_kept(root: Path) -> None:
    write(root, "fs.file-max", str(2**63 - 1))
    write(root, "kernel.pid_max", str(2**22 + 1))
    write(root, "fs.pipe-user-pages-soft", "0")  # no limit
    before = {each.name for each in find_low(root)}
    assert not before & {"fs.file-max", "kernel.pid_max", "fs.pipe-user-pages-soft"}
    raise_low(root)
    assert read(root, "fs.file-max") == [2**63 - 1]
    assert read(root, "kernel.pid_max") == [2**22 + 1]
    assert read(root, "fs.pipe-user-pages-soft") == [0]


def test_memory_of_sockets_is_unlimited_only_where_it_counts_as_the_sandbox_s(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not {each.name for each in find_low(root)} & set(OF_SOCKETS)
    (root / "controllers").touch()
    monkeypatch.setattr("os.sysconf", lambda _: 8 * GIBIBYTE)
    raise_low(root)
    assert read(root, "net.ipv4.tcp_mem") == [2 * GIBIBYTE, 3 * GIBIBYTE, 900_000_000], "one of three was higher"
    assert find_low(root) == []


def test_limits_that_the_kernel_lacks_are_skipped(root: Path) -> None:
    path(root, "kernel.pid_max").unlink()
    write(root, "fs.file-max", "what?")
    raise_low(root)
    assert not path(root, "kernel.pid_max").exists()
    assert path(root, "fs.file-max").read_text() == "what?"


def test_limits_that_may_not_be_changed_are_logged_with_the_fix(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "controllers").touch()
    monkeypatch.setattr("os.sysconf", lambda _: 4)

    def refuse(_: Path, __: str) -> int:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "write_text", refuse)
    with capture_logs() as logs:
        raise_low(root)
    [line] = logs
    assert line["event"] == "kernel_limits_low"
    assert line["advice"].startswith("as root of the machine: sysctl -w ")
    assert f"fs.file-max={UNLIMITED} " in line["advice"]


def test_page_for_operators_lists_the_limits() -> None:
    listed = re.findall(r"^([a-z_0-9.-]+) = (\d+)$", PAGE.read_text(), re.MULTILINE)
    assert {name: int(least) for name, least in listed} == AT_LEAST
