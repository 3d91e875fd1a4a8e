"""supervisord, in this process and in the foreground."""

import contextlib
import fcntl
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from supervisor.medusa.asyncore_25 import ExitNow  # type: ignore[import-untyped]
from supervisor.options import ServerOptions  # type: ignore[import-untyped]
from supervisor.supervisord import Supervisor  # type: ignore[import-untyped]


def supervise(configuration: Path) -> None:
    """Start the configured processes, restart those that die, and stop all on SIGINT, SIGTERM or SIGHUP."""
    _append_to_output()
    options = _Options()
    options.realize(["--configuration", str(configuration)], doc="")
    options.first, options.test = True, False
    with contextlib.suppress(ExitNow):
        Supervisor(options).main()


class _Options(ServerOptions):  # type: ignore[misc]
    def setsignals(self) -> None:
        """Stop when the terminal closes; supervisord would restart everything on SIGHUP."""
        super().setsignals()
        signal.signal(signal.SIGHUP, self._stop)

    def _stop(self, _number: int, frame: FrameType | None) -> None:
        self.signal_receiver.receive(signal.SIGTERM, frame)


def _append_to_output() -> None:
    # Supervisor reopens this standard output for each process. If it is a file, all must append.
    output = sys.stdout.fileno()
    fcntl.fcntl(output, fcntl.F_SETFL, fcntl.fcntl(output, fcntl.F_GETFL) | os.O_APPEND)
