"""A machine with systemd as its init: a copy of this one, in the namespaces of a machine of the cluster.

Its writes go to memory and are lost at the end. Its Docker Engine runs beside it with the same /run, and listens at the
usual socket.
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

# Runs a script in the copy before it boots, with this machine's network.
PREPARE = """
set -eu
cd "$0"
mount --rbind /dev dev
mount --rbind /proc proc
exec chroot . sh -euc "$1"
"""
# $0: the copy's root, $1: the engine's folder, $2: its socket, $3: the folder for /run. The rest is unmounted.
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
# A separate cgroup, which is the root of all cgroups of the machine.
GROUP = 'mkdir -p "$0" && echo $$ >"$0/cgroup.procs" && exec "$@"'
NAMESPACES = ("--cgroup", "--mount", "--pid", "--ipc", "--fork", "--kill-child")
# Units that the copy must not start: its engine runs beside it, and the timers are meant for this machine.
MASKED = ("docker.service", "docker.socket", "timers.target")


@dataclass(frozen=True)
class Copy:
    """The file system of the copy."""

    root: Path
    transcript: Transcript

    def prepare(self, script: str, shown: str) -> None:
        """Run a script in the copy, with this machine's network."""
        command = ["unshare", "--mount", "sh", "-c", PREPARE, str(self.root), script]
        self.transcript.run(shown, command)


@dataclass(frozen=True)
class Booted:
    """A booted machine with its init process."""

    init: int
    name: str
    transcript: Transcript

    def run(self, *words: str, into: Transcript | None = None) -> str:
        """Run a command as root; return its output."""
        return (into or self.transcript).run(f"{self.name}$ {' '.join(words)}", [*self._enter(), *words])

    def try_to_run(self, *words: str) -> str:
        """Run a command that may fail; return its output."""
        done = subprocess.run([*self._enter(), *words], capture_output=True, text=True, check=False, timeout=60)
        return (done.stdout + done.stderr).strip()

    def _enter(self) -> list[str]:
        return ["nsenter", f"--target={self.init}", "--all", "--root", "--wdns=/", "--"]


@contextmanager
def copied_machine(transcript: Transcript) -> Iterator[Copy]:
    """Copy this machine's file system for the length of the block, with changes in memory."""
    with short_directory("copy", in_memory=True) as folder:
        upper, work, root = (folder / name for name in ("upper", "work", "root"))
        for each in (upper, work, root):
            each.mkdir()
        folder.chmod(0o755)  # so that the copy's users may enter its root
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
    """Boot the copy as a machine, and turn it off after the block."""
    (copy.root / "etc" / "hostname").write_text(f"{machine.namespace.name}\n")
    group = _groups() / f"aw-{copy.root.parent.name}"
    boot = ["sh", "-c", BOOT, str(copy.root), str(machine.engine.data.parent), machine.socket, str(machine.engine.run)]
    # `unshare` ignores the SIGINT that it would get when this process dies, so request a SIGKILL instead.
    command = ["sh", "-c", GROUP, str(group), "setpriv", "--pdeathsig=KILL", "unshare", *NAMESPACES, *boot]
    log = machine.folder / "console"
    running = processes.start([*machine.namespace.command, *command], log)
    try:
        found = Booted(eventually(lambda: _child(running.pid, log)), machine.namespace.name, copy.transcript)
        eventually(lambda: found.try_to_run("systemctl", "is-system-running") == "running", deadline_seconds=120)
        yield found
    finally:
        running.kill()
        running.wait()
        eventually(lambda: _remove(group))


def _child(parent: int, log: Path) -> int:
    """The pid of the init process, which `unshare` has started."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    name = Path(f"/proc/{children[0]}/comm").read_text().strip() if children else ""
    assert Path(f"/proc/{parent}").exists(), log.read_text()
    return int(children[0]) if name == "systemd" else 0


def _groups() -> Path:
    """The mount point of cgroups v2."""
    found = subprocess.run(["findmnt", "-n", "-t", "cgroup2", "-o", "TARGET"], check=True, capture_output=True)
    return Path(found.stdout.decode().split()[0])


def _remove(group: Path) -> bool:
    """Remove a cgroup and those below it; return False if a process has not ended yet."""
    for folder in sorted(group.rglob("*/"), key=lambda path: len(path.parts), reverse=True):
        subprocess.run(["rmdir", folder], check=False, capture_output=True)
    return subprocess.run(["rmdir", group], check=False, capture_output=True).returncode == 0
