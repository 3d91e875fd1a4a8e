"""Probes of the kernel: system calls, devices, and files of /proc and /sys."""

import contextlib
import ctypes
import errno
import glob
import os
import resource
import struct
import tempfile

from tests.isolation.probes.base import Outcome

libc = ctypes.CDLL(None, use_errno=True)
# The errors of refused calls. Other errors come after the check of privileges, so the call would have been allowed.
REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSYS)
POINTER = "pointer"


def call(number: int, arguments: list[int | str], allowed: list[str] | None = None) -> Outcome:
    """Make a system call of x86-64. A string is passed by its address, `pointer` as the address of an empty page."""
    page = ctypes.create_string_buffer(4096)
    texts = [ctypes.create_string_buffer(one.encode()) for one in arguments if isinstance(one, str)]
    passed, left = [], iter(texts)
    for one in arguments:
        text = next(left) if isinstance(one, str) else None
        passed.append(ctypes.c_long(one) if isinstance(one, int) else page if one == POINTER else text)
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *passed)
    code = ctypes.get_errno() if result == -1 else 0
    name = errno.errorcode.get(code, "no error")
    return code not in REFUSALS and (not allowed or name in ["no error", *allowed]), name


def bpf() -> Outcome:
    """Create a map of the kind that needs the fewest privileges (BPF_MAP_CREATE)."""
    attributes = ctypes.create_string_buffer(struct.pack("5I", 2, 4, 8, 1, 0).ljust(128, b"\0"))
    return _result(libc.syscall(321, 0, attributes, 128))


def perf() -> Outcome:
    """Open a performance counter of the caller itself, in user mode."""
    attributes = ctypes.create_string_buffer(
        struct.pack("IIQ", 1, 128, 0).ljust(40, b"\0") + struct.pack("Q", 1 | 32 | 64)
    )
    return _result(libc.syscall(298, attributes.raw.ljust(128, b"\0"), 0, -1, -1, ctypes.c_ulong(0)))


def io_uring() -> Outcome:
    """Create an io_uring, whose requests seccomp does not filter."""
    return _result(libc.syscall(425, 1, ctypes.create_string_buffer(120)))


def clone3(flags: int) -> Outcome:
    """Create a child in new namespaces by clone3, whose flags seccomp cannot read."""
    arguments = ctypes.create_string_buffer(struct.pack("8Q", flags, 0, 0, 0, 17, 0, 0, 0))
    child = libc.syscall(435, arguments, 64)
    if child == 0:
        os._exit(0)
    if child > 0:
        os.waitpid(child, 0)
    return _result(child)


def enter_namespace(process: str, kind: str) -> Outcome:
    """Enter a namespace of another process."""
    descriptor = os.open(f"/proc/{process}/ns/{kind}", os.O_RDONLY)
    return _result(libc.setns(descriptor, 0))


def mount(kind: str, source: str = "none", flags: int = 0) -> Outcome:
    """Mount on a folder of its own, in a new mount namespace if that is allowed."""
    libc.unshare(0x20000)
    libc.mount(b"none", b"/", None, 0x44000, None)  # keep the following mounts in this namespace
    with tempfile.TemporaryDirectory() as folder:
        outcome = _result(libc.mount(source.encode(), folder.encode(), kind.encode(), flags, None))
        libc.umount2(folder.encode(), 2)
    return outcome


def remount_writable(path: str) -> Outcome:
    """Make a read-only mount writable, in a new mount namespace."""
    libc.unshare(0x20000)
    return _result(libc.mount(None, path.encode(), None, 0x20 | 0x1000, None))


def change_root() -> Outcome:
    """Change the root."""
    return _result(libc.chroot(b"/tmp"))


def make_device(kind: str, major: int, minor: int) -> Outcome:
    """Create a device file for the disk or the memory."""
    path = os.path.join(tempfile.mkdtemp(), "device")
    os.mknod(path, (0o060000 if kind == "block" else 0o020000) | 0o600, os.makedev(major, minor))
    os.unlink(path)
    os.rmdir(os.path.dirname(path))
    return True, "made"


def become(user: int) -> Outcome:
    """Change the user."""
    os.setgroups([]) if os.getuid() == 0 else None
    os.setuid(user)
    return os.getuid() == user, "changed"


def run_setuid() -> Outcome:
    """Find a setuid program of this system whose bit is honoured."""
    with open("/proc/self/status") as file:
        honoured = "NoNewPrivs:\t0" in file.read()
    found = [path for path in glob.glob("/usr/bin/*") if os.stat(path).st_mode & 0o6000]
    return bool(found) and honoured, f"{len(found)} programs, honoured: {honoured}"


def setuid_programs() -> Outcome:
    """Find programs with a setuid or setgid bit, whether honoured or not."""
    found = []
    for folder in ("/usr/bin", "/usr/sbin", "/usr/lib/openssh", "/usr/local/bin", "/usr/libexec"):
        with contextlib.suppress(FileNotFoundError):
            found += [one.path for one in os.scandir(folder) if one.is_file() and one.stat().st_mode & 0o6000]
    return bool(found), f"{len(found)}: {found[:3]}"


def status_field(name: str, harmless: list[str]) -> Outcome:
    """Read privileges from a line of /proc/self/status."""
    with open("/proc/self/status") as file:
        [value] = [line.split()[1] for line in file if line.startswith(f"{name}:")]
    return value not in harmless, value


def open_path(path: str, flags: str = "r") -> Outcome:
    """Open a file of the kernel, and read it if `flags` is `r`. `*` stands for any name, `|` separates paths."""
    found = sorted(name for one in path.split("|") for name in glob.glob(one))
    if not found:
        raise FileNotFoundError(errno.ENOENT, path)
    descriptor = os.open(found[0], os.O_RDONLY | os.O_NONBLOCK if flags == "r" else os.O_WRONLY)
    text = os.read(descriptor, 16_384) if flags == "r" else b""
    os.close(descriptor)
    return flags == "w" or bool(text.strip(b"\0\n")), f"{found[0]}: {text[:60]!r}"


def kernel_addresses() -> Outcome:
    """Read the addresses of kernel functions, which exploits need."""
    with open("/proc/kallsyms") as file:
        address = file.readline().split()[0]
    return int(address, 16) != 0, address


def processes_of_host() -> Outcome:
    """See processes outside the container."""
    numbers = [one for one in os.listdir("/proc") if one.isdigit()]
    return len(numbers) > 40, f"{len(numbers)} processes"


def kernel_thread_visible() -> Outcome:
    """See kernel threads, which have no command line."""
    with open("/proc/2/comm") as file:
        name = file.read()
    return "kthreadd" in name, name


def devices() -> Outcome:
    """Find devices other than the harmless ones."""
    harmless = {"null", "zero", "full", "random", "urandom", "tty", "pts", "ptmx", "shm", "mqueue", "core", "fd"}
    found = set(os.listdir("/dev")) - harmless - {"stdin", "stdout", "stderr", "console"}
    return bool(found), f"{sorted(found)[:5]}"


def lower_score() -> Outcome:
    """Lower the score by which the OOM killer chooses processes."""
    with open("/proc/self/oom_score_adj", "r+") as file:
        value = int(file.read())
        file.seek(0)
        file.write(str(value - 1))
        file.flush()
    return True, f"{value - 1}"


def raise_priority() -> Outcome:
    """Raise the scheduling priority."""
    return True, f"{os.nice(-5)}"


def real_time() -> Outcome:
    """Take a real-time priority."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    return True, "SCHED_FIFO"


def raise_limit(kind: int) -> Outcome:
    """Raise a limit of the process above its maximum."""
    _, hard = resource.getrlimit(kind)
    try:
        resource.setrlimit(kind, (hard + 1, hard + 1) if hard != resource.RLIM_INFINITY else (hard, hard))
    except ValueError as error:
        raise PermissionError(errno.EPERM, str(error)) from None
    return True, f"above {hard}"


def join_cgroup() -> Outcome:
    """Join another cgroup, with other limits."""
    paths = glob.glob("/sys/fs/cgroup/pids/cgroup.procs") + glob.glob("/sys/fs/cgroup/cgroup.procs")
    with open(paths[0], "w") as file:
        file.write(str(os.getpid()))
    return True, "joined"


def make_cgroup() -> Outcome:
    """Create a cgroup."""
    for root in [*glob.glob("/sys/fs/cgroup/pids"), "/sys/fs/cgroup"]:
        path = f"{root}/attack-{os.getpid()}"
        os.mkdir(path)
        os.rmdir(path)
        return True, path
    return False, "no control groups"


def _result(result: int) -> Outcome:
    code = ctypes.get_errno() if result == -1 else 0
    if result > 2:
        with contextlib.suppress(OSError):
            os.close(result)
    return code not in REFUSALS, errno.errorcode.get(code, "no error")
