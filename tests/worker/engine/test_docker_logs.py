"""Logs of the real engine: large ones, endless lines, and secrets at every border of what is read."""

import subprocess
import time
from collections.abc import Iterator

import pytest

from shared.container_logs.limits import MAX_BYTES
from shared.container_logs.printed_text import StoredText, read_stored, write_stored
from shared.redaction import HIDDEN
from tests.fixtures.containers import started
from tests.services.engine import docker_engine
from tests.waiting import eventually
from worker.engine.disk_engine import DiskEngine
from worker.engine.log_stream import MAX_KEPT_BYTES, MAX_SECONDS
from worker.engine.protocol import ContainerRequest

SECRET = "tok-0123456789abcdef"
# The engine splits a long line into parts of this size.
PART = 16 * 1024
BOUND_SECONDS = 2 * MAX_SECONDS + 1


@pytest.fixture
def docker(installation: str) -> Iterator[DiskEngine]:
    with docker_engine(installation) as engine:
        yield engine


@pytest.fixture
def name(docker: DiskEngine, request_: ContainerRequest) -> str:
    """A container whose server has already printed its own output, which thus interrupts no line of a test."""
    name = started(docker, request_)
    eventually(lambda: docker.read_log(name).lines)
    return name


def print_in_container(name: str, script: str, *, to: int = 1) -> None:
    """Have the container's main process print what a shell in the container prints."""
    command = ["docker", "exec", name, "sh", "-c", f"( {script} ) >/proc/1/fd/{to}"]
    subprocess.run(command, check=True, timeout=120)


def stored(docker: DiskEngine, name: str) -> StoredText:
    """The log as it is stored; reading it took no longer than the bound, and its size is within the limits."""
    began = time.monotonic()
    log = docker.read_log(name)
    assert time.monotonic() - began < BOUND_SECONDS
    assert sum(len(line.text) for line in log.lines) <= MAX_KEPT_BYTES
    text = write_stored(log, [SECRET])
    assert len(text.text.encode()) <= MAX_BYTES
    return text


def texts(docker: DiskEngine, name: str) -> list[str]:
    return [line.text for line in read_stored(stored(docker, name).text)]


def test_large_log_is_bounded(docker: DiskEngine, name: str) -> None:
    print_in_container(
        name, "yes 01234567890123456789012345678901234567890123456789 | head -c 100000000; echo; echo end"
    )
    eventually(lambda: texts(docker, name)[-1:] == ["end"])
    assert stored(docker, name).is_cut
    assert len(texts(docker, name)) > 500
    docker.remove(name)


def test_endless_line_is_bounded(docker: DiskEngine, name: str) -> None:
    print_in_container(name, "head -c 30000000 /dev/zero | tr '\\0' x")
    eventually(lambda: len(stored(docker, name).text) > MAX_BYTES / 2)
    assert set(texts(docker, name)[-1]) == {"x"}
    docker.remove(name)


def test_endless_output_is_read_in_time(docker: DiskEngine, name: str) -> None:
    subprocess.run(["docker", "exec", "--detach", name, "sh", "-c", "yes endless >/proc/1/fd/1"], check=True)
    eventually(lambda: stored(docker, name).is_cut)
    for _ in range(3):
        assert texts(docker, name)[-1:] == ["endless"]
        assert stored(docker, name).is_cut
    docker.remove(name)


@pytest.mark.parametrize("border", [1, 5, 19])
def test_secret_across_two_parts_of_a_line_is_hidden(docker: DiskEngine, name: str, border: int) -> None:
    padding = PART - border
    print_in_container(name, f"head -c {padding} /dev/zero | tr '\\0' x; echo {SECRET}; echo end")
    eventually(lambda: texts(docker, name)[-1:] == ["end"])
    assert texts(docker, name)[-2] == "x" * padding + HIDDEN
    docker.remove(name)


def test_binary_output_of_both_streams_is_read(docker: DiskEngine, name: str) -> None:
    binary = "a\ufffdb\ufffdred"
    print_in_container(name, "printf 'a\\000b\\377\\033[31mred\\r\\n'")
    # The engine reads the two streams concurrently.
    eventually(lambda: texts(docker, name)[-1:] == [binary])
    print_in_container(name, "echo error", to=2)
    eventually(lambda: texts(docker, name)[-2:] == [binary, "error"])
    docker.remove(name)
