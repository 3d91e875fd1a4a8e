"""Servers as child processes that never outlive the tests, not even killed ones."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# The user without rights on each Linux system.
OVERFLOW_UID = 65534
# To the kernel a child's parent is the thread that started it: this one lives as long as we do.
_STARTER = ThreadPoolExecutor(max_workers=1)


def unprivileged() -> pwd.struct_passwd:
    """The user that a server runs as: ourselves, or a harmless one where we are root."""
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
    """Start a server in a session of its own, so that a Ctrl-C for the tests reaches it through `stop` only.

    The kernel interrupts it should our process die first.
    """
    return _STARTER.submit(_start, command, log, user, environment, descriptors).result()


def start_module(
    command: Sequence[str], environment: Mapping[str, str], log: Path, *, launcher: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start one of our processes as it is started elsewhere, with these variables more: nothing is imported yet.

    Args:
        launcher: a command that runs the command behind it.
    """
    variables = {name: value for name, value in os.environ.items() if not name.startswith("AW_")}
    return start([*launcher, sys.executable, "-m", *command], log, environment=variables | dict(environment))


def run(command: Sequence[str], user: pwd.struct_passwd) -> None:
    """Run a command to its end as that user.

    Raises:
        RuntimeError: it failed; its output is in the message.
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
    """Interrupt the server and wait for its end; kill it where it does not listen."""
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
    """Nothing, unless the tests run in a shell's background: what they start would ignore the signal that ends it."""
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
