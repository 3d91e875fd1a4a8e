"""A machine with systemd as its init: a copy of this one, in the namespaces of a machine of the cluster.

What it writes is kept in memory and gone at the end. Its Docker Engine runs beside it, with the same /run, and
is at the usual socket.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.machines import Machine
from tests.cluster.transcript import Transcript
from tests.services import processes
from tests.services.directories import short_directory
from tests.waiting import eventually

# Run in the copy, with this machine's network, before it boots.
PREPARE = """
set -eu
cd "$0"
mount --rbind /dev dev
mount --rbind /proc proc
exec chroot . sh -euc "$1"
"""
# $0: the copy's root, $1: the engine's folder, $2: its socket, $3: what is /run. All other file systems are gone then.
BOOT = """
set -eu
cd "$0"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount --rbind /dev dev
mount --bind "$3" run
mkdir -p ".$1" old
mount --rbind "$1" ".$1"
touch run/docker.sock
mount --bind "$2" run/docker.sock
pivot_root . old
umount --lazy old
cd /
exec env -i container=test PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --unit=basic.target --log-target=console --log-level=notice
"""
# A group of its own, which is the root of all groups there.
GROUP = 'mkdir -p "$0" && echo $$ >"$0/cgroup.procs" && exec "$@"'
NAMESPACES = ("--cgroup", "--mount", "--pid", "--ipc", "--fork", "--kill-child")
# The engine runs beside the copy, and this machine's own timers are not for it.
MASKED = ("docker.service", "docker.socket", "timers.target")


@dataclass(frozen=True)
class Copy:
    """The file system of the copy."""

    root: Path
    transcript: Transcript

    def prepare(self, script: str, shown: str) -> None:
        """Run a script in it, which has this machine's network."""
        command = ["unshare", "--mount", "sh", "-c", PREPARE, str(self.root), script]
        self.transcript.run(shown, command)


@dataclass(frozen=True)
class Booted:
    """The machine with its init."""

    init: int
    name: str
    transcript: Transcript

    def run(self, *words: str, into: Transcript | None = None) -> str:
        """The output of a command, run by root."""
        return (into or self.transcript).run(f"{self.name}$ {' '.join(words)}", [*self._enter(), *words])

    def says(self, *words: str) -> str:
        """The output of a command that may fail."""
        done = subprocess.run([*self._enter(), *words], capture_output=True, text=True, check=False, timeout=60)
        return (done.stdout + done.stderr).strip()

    def _enter(self) -> list[str]:
        return ["nsenter", f"--target={self.init}", "--all", "--root", "--wdns=/", "--"]


@contextmanager
def copied_machine(transcript: Transcript) -> Iterator[Copy]:
    """A copy of this machine's file system, for the length of the block. Its changes are in memory."""
    with short_directory("copy", in_memory=True) as folder:
        upper, work, root = (folder / name for name in ("upper", "work", "root"))
        for each in (upper, work, root):
            each.mkdir()
        folder.chmod(0o755)  # users of the copy search its root
        options = f"lowerdir=/,upperdir={upper},workdir={work}"
        subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", root], check=True, capture_output=True)
        try:
            for name in MASKED:
                unit = root / "etc" / "systemd" / "system" / name
                unit.unlink(missing_ok=True)
                unit.symlink_to("/dev/null")
            yield Copy(root, transcript)
        finally:
            subprocess.run(["umount", "--lazy", root], check=True, capture_output=True)


@contextmanager
def booted(machine: Machine, copy: Copy) -> Iterator[Booted]:
    """Boot the copy as that machine; it is turned off at the end of the block."""
    (copy.root / "etc" / "hostname").write_text(f"{machine.namespace.name}\n")
    group = _groups() / f"aw-{copy.root.parent.name}"
    boot = ["sh", "-c", BOOT, str(copy.root), str(machine.engine.data.parent), machine.socket, str(machine.engine.run)]
    # `unshare` ignores the interrupt that it would get when this process dies.
    command = ["sh", "-c", GROUP, str(group), "setpriv", "--pdeathsig=KILL", "unshare", *NAMESPACES, *boot]
    log = machine.folder / "console"
    running = processes.start([*machine.namespace.command, *command], log)
    try:
        found = Booted(eventually(lambda: _child(running.pid, log)), machine.namespace.name, copy.transcript)
        eventually(lambda: found.says("systemctl", "is-system-running") == "running", deadline_seconds=120)
        yield found
    finally:
        running.kill()
        running.wait()
        eventually(lambda: _remove(group))


def _child(parent: int, log: Path) -> int:
    """The init: what `unshare` has started."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    name = Path(f"/proc/{children[0]}/comm").read_text().strip() if children else ""
    assert Path(f"/proc/{parent}").exists(), log.read_text()
    return int(children[0]) if name == "systemd" else 0


def _groups() -> Path:
    """Where the second version of control groups is."""
    found = subprocess.run(["findmnt", "-n", "-t", "cgroup2", "-o", "TARGET"], check=True, capture_output=True)
    return Path(found.stdout.decode().split()[0])


def _remove(group: Path) -> bool:
    """Remove a group and those below it; False: a process has not ended yet."""
    for folder in sorted(group.rglob("*/"), key=lambda path: len(path.parts), reverse=True):
        subprocess.run(["rmdir", folder], check=False, capture_output=True)
    return subprocess.run(["rmdir", group], check=False, capture_output=True).returncode == 0
