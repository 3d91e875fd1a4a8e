"""Servers as child processes that never outlive the tests, even if the tests are killed."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# The unprivileged user of each Linux system.
OVERFLOW_UID = 65534
# For the kernel, the parent of a child is the thread that started it. This thread lives as long as the process.
_STARTER = ThreadPoolExecutor(max_workers=1)


def unprivileged() -> pwd.struct_passwd:
    """The user that runs a server: the current one, or an unprivileged one instead of root."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwuid(OVERFLOW_UID)


def start(
    command: Sequence[str],
    log: Path,
    user: pwd.struct_passwd | None = None,
    environment: Mapping[str, str] | None = None,
    descriptors: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a server in its own session, so that a Ctrl-C for the tests reaches it only by `stop`.

    The kernel interrupts the server if this process dies first.
    """
    return _STARTER.submit(_start, command, log, user, environment, descriptors).result()


def start_module(
    command: Sequence[str], environment: Mapping[str, str], log: Path, *, launcher: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start a process of the service in a new interpreter, with additional variables.

    Args:
        launcher: the prefix of the command.
    """
    variables = {name: value for name, value in os.environ.items() if not name.startswith("AW_")}
    return start([*launcher, sys.executable, "-m", *command], log, environment=variables | dict(environment))


def run(command: Sequence[str], user: pwd.struct_passwd) -> None:
    """Run a command as a user, and wait for its end.

    Raises:
        RuntimeError: the command failed; its output is in the message.
    """
    done = subprocess.run(
        [*_setpriv("--pdeathsig=KILL", *_identity(user)), *command],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {done.stdout}{done.stderr}")


def stop(process: subprocess.Popen[bytes], *, deadline_seconds: float = 20) -> None:
    """Interrupt a server and wait for its end; kill it if it does not end in time."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(deadline_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _start(
    command: Sequence[str],
    log: Path,
    user: pwd.struct_passwd | None,
    environment: Mapping[str, str] | None,
    descriptors: Sequence[int],
) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            [*_setpriv("--pdeathsig=INT", *_identity(user)), *_interruptible(), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
            env=environment,
            pass_fds=descriptors,
        )


def _interruptible() -> list[str]:
    """The prefix that restores SIGINT, which is ignored if the tests run in a shell's background."""
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    return ["env", "--default-signal=INT"] if ignored else []


def _identity(user: pwd.struct_passwd | None) -> list[str]:
    if user is None or user.pw_uid == os.geteuid():
        return []
    return [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def _setpriv(*options: str) -> list[str]:
    path = shutil.which("setpriv", path=os.environ.get("PATH", "") + ":/usr/bin:/bin")
    if path is None:
        raise RuntimeError("setpriv (from util-linux) is needed to run the tests' servers")
    return [path, *options]
