"""Interpreters for programs of the service, forked from one that has imported the modules.

The imports of a program take most of its time, up to two seconds. One server (`tests.services.interpreter_server`) is
shared by all processes of a test run. An interpreter has the folder, environment, streams and exit status that a new
one would have; but its command line, and its first environment in `/proc`, are the server's.
"""

import atexit
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from tests.services.directories import REPOSITORY
from tests.services.interpreter_server import HOLD, MAX_REQUEST, READY

IMPORTED_BEFOREHAND = ("tests.services.imported_beforehand", "tests.services.programs_imported_beforehand")
# The server ends by itself as soon as no process of tests holds it.
END_SECONDS = 0.5
# The servers that this process has started.
SERVERS: list["subprocess.Popen[bytes]"] = []


class Interpreter:
    """A running interpreter, with the part of `subprocess.Popen`'s interface that tests use."""

    def __init__(self, connection: socket.socket) -> None:
        self.returncode: int | None = None
        self._connection = connection
        self.pid = int(connection.recv(MAX_REQUEST))

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit code.

        Raises:
            TimeoutExpired: it did not end in time.
        """
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"interpreter {self.pid}", timeout or 0)
            self.returncode = int(self._connection.recv(MAX_REQUEST))
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        self.send_signal(signal.SIGKILL)


class Interpreters:
    """Starts interpreters."""

    def __init__(self, address: str) -> None:
        self._address = address

    def run(
        self, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run `python` with these arguments, `-m MODULE ...` or `-c CODE ...`, until it ends; capture its output.

        Raises:
            TimeoutExpired: it did not end in time, and was killed.
        """
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            started = self.start(*arguments, cwd=cwd, env=env, stdout=out, stderr=err)
            try:
                code = started.wait(timeout)
            finally:
                started.kill()
                started.wait()
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(["python", *arguments], code, out.read(), err.read())

    def start(
        self,
        *arguments: str,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        stdin: IO[str] | None = None,
        stdout: IO[str],
        stderr: IO[str] | None = None,
    ) -> Interpreter:
        """Start `python` with these arguments. By default, its input is empty, and its errors are in its output."""
        request = {"arguments": arguments, "cwd": str(cwd), "env": dict(os.environ if env is None else env)}
        connection = _connect(self._address)
        with Path(os.devnull).open() as nothing:
            descriptors = [(stdin or nothing).fileno(), stdout.fileno(), (stderr or stdout).fileno()]
            socket.send_fds(connection, [json.dumps(request).encode()], descriptors)
            return Interpreter(connection)


class NewInterpreters(Interpreters):
    """Starts new interpreters, which import what they need by themselves."""

    def __init__(self) -> None:
        super().__init__(address="")

    def start(
        self,
        *arguments: str,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        stdin: IO[str] | None = None,
        stdout: IO[str],
        stderr: IO[str] | None = None,
    ) -> Interpreter:
        """Start `python` with these arguments, with the same streams."""
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig=KILL", sys.executable, *arguments],
            cwd=cwd,
            env=env,
            stdin=stdin or subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr or stdout,
            start_new_session=True,
        )
        return _NewInterpreter(process)


class _NewInterpreter(Interpreter):
    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.returncode = None
        self._process, self.pid = process, process.pid

    def wait(self, timeout: float | None = None) -> int:
        self.returncode = self._process.wait(timeout)
        return self.returncode


@contextmanager
def interpreters(
    directory: Path, modules: Sequence[str] = IMPORTED_BEFOREHAND, launcher: Sequence[str] = ()
) -> Iterator[Interpreters]:
    """Hold the server of this directory for the length of the block; start it if it does not run.

    Args:
        directory: processes with the same directory share the server.
        modules: what it imports beforehand.
        launcher: the prefix of its command.
    """
    with ExitStack() as stack:
        folder = os.open(directory, os.O_RDONLY)
        stack.callback(os.close, folder)
        address = f"/proc/self/fd/{folder}/interpreters"  # the path itself may be too long for a socket
        with (directory / "interpreters.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            holder = _hold(address) or _start(address, [*launcher, sys.executable], modules, stack)
        stack.callback(holder.close)
        yield Interpreters(address)


def _hold(address: str) -> socket.socket | None:
    """A connection that holds the server; None if none runs."""
    with ExitStack() as stack, suppress(FileNotFoundError, ConnectionError):
        holder = stack.enter_context(_connect(address))
        holder.send(HOLD)
        if holder.recv(MAX_REQUEST) == READY:
            stack.pop_all()
            return holder
    return None


def _start(address: str, python: Sequence[str], modules: Sequence[str], stack: ExitStack) -> socket.socket:
    Path(address).unlink(missing_ok=True)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, theirs:
        listener.bind(address)
        listener.listen(socket.SOMAXCONN)
        passed = [listener.fileno(), theirs.fileno()]
        server = subprocess.Popen(
            [*python, "-m", "tests.services.interpreter_server", *map(str, passed), *modules],
            cwd=Path(address).parent,  # without a developer's settings, and without modules
            env={name: value for name, value in os.environ.items() if not name.startswith("AW_")}
            | {"PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.DEVNULL,
            pass_fds=passed,
            start_new_session=True,
        )
    SERVERS.append(server)
    stack.callback(_await_end, server)
    if ours.recv(MAX_REQUEST) != READY:
        ours.close()
        raise RuntimeError(f"the server of interpreters ended with {server.wait()}: its error is above")
    return ours


def _connect(address: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


@atexit.register
def _leave_servers() -> None:
    """Prevent Python's warnings of servers that do not end with this process, because other processes hold them."""
    for server in SERVERS:
        if server.poll() is None:
            server.returncode = 0


def _await_end(server: subprocess.Popen[bytes]) -> None:
    with suppress(subprocess.TimeoutExpired):  # other processes of this test run may still hold it
        server.wait(END_SECONDS)
