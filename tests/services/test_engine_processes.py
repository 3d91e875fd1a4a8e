"""The cleanup kills shims of its engine without a container, and no others."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.services.engine_processes import kill_half_made_shims

ALONE = "#!/bin/sh\necho made\nread line\n"
# The child prints the line, because until it has executed its program it looks like a shim without a child.
WITH_CONTAINER = "#!/bin/sh\nsh -c 'echo made; exec sleep 60' &\nwait\n"
# The child renames itself as a container's process that waits for its start.
BEFORE_START = """#!/bin/sh
exec 3<&0
sh -c 'printf "runc:[2:INIT]" >/proc/$$/comm; echo made; read line <&3' &
wait
"""
# The child has not executed its program, so it looks like its parent.
WITH_FORK = "#!/bin/sh\nexec 3<&0\n(read line <&3; :) &\necho made\nwait\n"

StartShim = Callable[[str, Path], "subprocess.Popen[bytes]"]


@pytest.fixture
def start_shim(tmp_path: Path) -> Iterator[StartShim]:
    """Start a process that looks like a shim of the engine in a directory."""
    with ExitStack() as stack:

        def start(script: str, home: Path) -> "subprocess.Popen[bytes]":
            program = tmp_path / "containerd-shim-runc-v2"
            program.write_text(script)
            program.chmod(0o755)
            command = [str(program), "-id", "one", "-address", f"{home}/exec/containerd/containerd.sock"]
            shim = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
            )
            stack.callback(shim.kill)
            assert shim.stdout is not None
            assert shim.stdout.readline() == b"made\n"
            return shim

        yield start


def test_shim_without_a_container_is_killed(tmp_path: Path, start_shim: StartShim) -> None:
    shim = start_shim(ALONE, tmp_path / "engine")
    assert kill_half_made_shims(tmp_path / "engine") == [shim.pid]
    assert shim.wait(10) == -9


def test_shim_of_a_container_that_awaits_its_start_is_killed_with_it(tmp_path: Path, start_shim: StartShim) -> None:
    shim = start_shim(BEFORE_START, tmp_path / "engine")
    assert shim.stdout is not None
    [killed, _] = kill_half_made_shims(tmp_path / "engine")
    assert (killed, shim.wait(10)) == (shim.pid, -9)
    assert shim.stdout.read() == b""  # until the last process that has it has ended


@pytest.mark.parametrize("script", [WITH_CONTAINER, WITH_FORK])
def test_shim_with_a_container_is_kept(tmp_path: Path, start_shim: StartShim, script: str) -> None:
    start_shim(script, tmp_path / "engine")
    assert kill_half_made_shims(tmp_path / "engine") == []


def test_shim_of_another_engine_is_kept(tmp_path: Path, start_shim: StartShim) -> None:
    start_shim(ALONE, tmp_path / "engine-2")
    assert kill_half_made_shims(tmp_path / "engine") == []
