"""A process that has imported modules, and forks an interpreter for each request (`tests.services.interpreters`).

`python -m tests.services.interpreter_server LISTENER HOLDER MODULE...`: the descriptors of a listening socket, and of a
connection by which the first process of tests holds this one. It ends as soon as no process holds it.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

MAX_REQUEST = 131_072
HOLD, READY = b"hold", b"ready"
PR_SET_PDEATHSIG = 1
# What all interpreters find, beside the folder they start in and PYTHONPATH.
INSTALLED = [path for path in sys.path[1:] if path not in os.environ.get("PYTHONPATH", "").split(os.pathsep)]

Program = Callable[[], None]


class InterpreterServer:
    """Forks interpreters, reports their exit statuses, and ends those whose requesters have ended."""

    def __init__(self, listener: socket.socket, holder: socket.socket) -> None:
        self._listener, self._holders = listener, {holder}
        self._running: dict[int, tuple[int, socket.socket]] = {}  # pids and requesters by pidfd

    def serve(self) -> Program | None:
        """Serve until no process holds this one; return what a forked child has to run, but only in that child."""
        while self._holders:
            requesters = {requester: pidfd for pidfd, (_, requester) in self._running.items()}
            sources: list[Any] = [self._listener, *self._holders, *self._running, *requesters]
            ready, _, _ = select.select(sources, [], [])
            for each in ready:
                if each in self._running:
                    self._report(each)
                elif each in requesters and requesters[each] in self._running:
                    os.kill(self._running[requesters[each]][0], signal.SIGKILL)  # no process waits for it
                    self._report(requesters[each])
                elif each in self._holders:
                    self._holders.remove(each)
                    each.close()
            if self._listener in ready and (program := self._accept()):
                return program
        return None

    def _report(self, pidfd: int) -> None:
        pid, requester = self._running.pop(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        _send(requester, str(os.waitstatus_to_exitcode(status)).encode())
        requester.close()

    def _accept(self) -> Program | None:
        connection, _ = self._listener.accept()
        message, descriptors, _, _ = socket.recv_fds(connection, MAX_REQUEST, 3)
        if message == HOLD:
            _send(connection, READY)
            self._holders.add(connection)
            return None
        if not message:
            connection.close()  # its process has ended
            return None
        server, pid = os.getpid(), os.fork()
        if not pid:
            self._close(connection)
            return _prepare(server, descriptors, **json.loads(message))
        for descriptor in descriptors:
            os.close(descriptor)
        self._running[os.pidfd_open(pid)] = pid, connection
        _send(connection, str(pid).encode())
        return None

    def _close(self, connection: socket.socket) -> None:
        for each in (connection, self._listener, *self._holders, *(other for _, other in self._running.values())):
            each.close()
        for pidfd in self._running:
            os.close(pidfd)


def _send(connection: socket.socket, message: bytes) -> None:
    """Send a message, unless the other process has ended, with or without unread messages."""
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.send(message)


def _prepare(
    server: int, descriptors: Sequence[int], arguments: Sequence[str], cwd: str, env: Mapping[str, str]
) -> Program:
    """Become what a new interpreter with these arguments is; return what it runs."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    tempfile.tempdir = None
    option, program, *rest = arguments
    first = {"-m": cwd, "-c": ""}[option]
    sys.path[:] = [first, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep)), *INSTALLED]
    sys.argv = [option, *rest]
    if option == "-m":
        return lambda: _run_module(program)
    return lambda: _run_code(program)


def _run_module(name: str) -> None:
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _run_code(code: str) -> None:
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    exec(compile(code, "<string>", "exec"), vars(module))


def _run(program: Program) -> None:
    """Run a program and end; an error, or Ctrl-C, ends the process as it would end any other."""
    code: Any = None
    try:
        program()
    except SystemExit as end:
        code = end.code
    if not isinstance(code, int | None):
        sys.stderr.write(f"{code}\n")
    # Python would next clear all modules, and copy all their memory for this: a tenth of a second.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF if isinstance(code, int) else code is not None)


def main(listener: str, holder: str, *modules: str) -> None:
    """Import the modules, and serve."""
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy all memory of the modules
    held = socket.socket(fileno=int(holder))
    held.send(READY)
    if program := InterpreterServer(socket.socket(fileno=int(listener)), held).serve():
        _run(program)


if __name__ == "__main__":
    main(*sys.argv[1:])
