"""A program that tests run many times: one process imports its modules, and each run is a fork of it.

Imports take most of a second in a new interpreter. `python -m tests.services.forked_program MODULE FD` is the process
that forks. It reads requests from the socket FD until that is closed. The module must define `main(arguments)`.
"""

import ctypes
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tests.services.directories import REPOSITORY
from tests.waiting import eventually

MAX_REQUEST = 65_536
PR_SET_PDEATHSIG = 1


class Run:
    """One run of the program: a process with pipes."""

    def __init__(self, pid: int, stdin: IO[str], stdout: IO[str]) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout

    @property
    def runs(self) -> bool:
        """Whether the process has not ended."""
        return Path(f"/proc/{self.pid}").exists()

    def terminate(self) -> None:
        """Tell the run to end, unless it has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the run, and wait until its pid is free."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        eventually(lambda: not self.runs)
        for pipe in (self.stdin, self.stdout):
            with suppress(BrokenPipeError):
                pipe.close()


class ForkedProgram:
    """The process that forks a run for each request."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._alone = threading.Lock()  # one request at a time, so that each gets its own response

    def run(self, *arguments: str) -> Run:
        """Run the program with these arguments."""
        (theirs_in, ours_in), (ours_out, theirs_out) = os.pipe(), os.pipe()
        with self._alone:
            socket.send_fds(self._requests, [json.dumps(arguments).encode()], [theirs_in, theirs_out])
            pid = int(self._requests.recv(MAX_REQUEST))
        for descriptor in (theirs_in, theirs_out):
            os.close(descriptor)
        return Run(pid, os.fdopen(ours_in, "w"), os.fdopen(ours_out))


@contextmanager
def forked_program(module: str) -> Iterator[ForkedProgram]:
    """Prepare the program of a module; its runs end with their pipes."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", __name__, module, str(theirs.fileno())]
    with ours, subprocess.Popen(command, cwd=REPOSITORY, pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        try:
            yield ForkedProgram(ours)
        finally:
            process.kill()


def _serve(main: Callable[[Sequence[str]], None], requests: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that ended runs leave no zombies, which would look alive
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, MAX_REQUEST, 2)
        if not message:
            return
        pid = os.fork()
        if not pid:
            requests.close()
            _become(main, json.loads(message), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(str(pid).encode())


def _become(main: Callable[[Sequence[str]], None], arguments: Sequence[str], descriptors: Sequence[int]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for descriptor, number in zip(descriptors, (0, 1), strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    main(arguments)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    _serve(importlib.import_module(sys.argv[1]).main, socket.socket(fileno=int(sys.argv[2])))
