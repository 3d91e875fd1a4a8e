"""Probes of the kernel: system calls, devices, and what /proc and /sys show and accept."""

import contextlib
import ctypes
import errno
import glob
import os
import resource
import socket
import struct
import tempfile

from tests.isolation.probes.base import Outcome

libc = ctypes.CDLL(None, use_errno=True)
# Errors that say that a call is refused. Others come after the check of rights: the caller would have been allowed.
REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSYS)
POINTER = "pointer"


def call(number: int, arguments: list[int | str], allowed: list[str] | None = None) -> Outcome:
    """A system call of x86-64. A text is passed as its address, `pointer` as that of an empty page."""
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
    """A map of the kind that needs the fewest rights (BPF_MAP_CREATE)."""
    attributes = ctypes.create_string_buffer(struct.pack("5I", 2, 4, 8, 1, 0).ljust(128, b"\0"))
    return _result(libc.syscall(321, 0, attributes, 128))


def perf() -> Outcome:
    """A counter of the caller itself, in user mode."""
    attributes = ctypes.create_string_buffer(
        struct.pack("IIQ", 1, 128, 0).ljust(40, b"\0") + struct.pack("Q", 1 | 32 | 64)
    )
    return _result(libc.syscall(298, attributes.raw.ljust(128, b"\0"), 0, -1, -1, ctypes.c_ulong(0)))


def io_uring() -> Outcome:
    """A ring of requests that the kernel executes past seccomp."""
    return _result(libc.syscall(425, 1, ctypes.create_string_buffer(120)))


def clone3(flags: int) -> Outcome:
    """A child in new namespaces, by the call whose flags seccomp can't read."""
    arguments = ctypes.create_string_buffer(struct.pack("8Q", flags, 0, 0, 0, 17, 0, 0, 0))
    child = libc.syscall(435, arguments, 64)
    if child == 0:
        os._exit(0)
    if child > 0:
        os.waitpid(child, 0)
    return _result(child)


def enter_namespace(process: str, kind: str) -> Outcome:
    """A namespace of another process, or again one's own."""
    descriptor = os.open(f"/proc/{process}/ns/{kind}", os.O_RDONLY)
    return _result(libc.setns(descriptor, 0))


def mount(kind: str, source: str = "none", flags: int = 0) -> Outcome:
    """A mount on a folder of one's own, in a namespace of one's own where that is allowed."""
    libc.unshare(0x20000)
    libc.mount(b"none", b"/", None, 0x44000, None)  # what follows stays in this namespace
    with tempfile.TemporaryDirectory() as folder:
        outcome = _result(libc.mount(source.encode(), folder.encode(), kind.encode(), flags, None))
        libc.umount2(folder.encode(), 2)
    return outcome


def remount_writable(path: str) -> Outcome:
    """A read-only mount, made writable in a namespace of one's own."""
    libc.unshare(0x20000)
    return _result(libc.mount(None, path.encode(), None, 0x20 | 0x1000, None))


def change_root() -> Outcome:
    """A root of one's own."""
    return _result(libc.chroot(b"/tmp"))


def make_device(kind: str, major: int, minor: int) -> Outcome:
    """A device file, which would lead to the disk or to memory."""
    path = os.path.join(tempfile.mkdtemp(), "device")
    os.mknod(path, (0o060000 if kind == "block" else 0o020000) | 0o600, os.makedev(major, minor))
    os.unlink(path)
    os.rmdir(os.path.dirname(path))
    return True, "made"


def become(user: int) -> Outcome:
    """Another user."""
    os.setgroups([]) if os.getuid() == 0 else None
    os.setuid(user)
    return os.getuid() == user, "changed"


def run_setuid() -> Outcome:
    """A program whose setuid bit gives rights: whether one of those on this system is there and is honoured."""
    with open("/proc/self/status") as file:
        honoured = "NoNewPrivs:\t0" in file.read()
    found = [path for path in glob.glob("/usr/bin/*") if os.stat(path).st_mode & 0o6000]
    return bool(found) and honoured, f"{len(found)} programs, honoured: {honoured}"


def setuid_programs() -> Outcome:
    """Programs with a setuid or setgid bit, whether honoured or not."""
    found = []
    for folder in ("/usr/bin", "/usr/sbin", "/usr/lib/openssh", "/usr/local/bin", "/usr/libexec"):
        with contextlib.suppress(FileNotFoundError):
            found += [one.path for one in os.scandir(folder) if one.is_file() and one.stat().st_mode & 0o6000]
    return bool(found), f"{len(found)}: {found[:3]}"


def status_field(name: str, harmless: list[str]) -> Outcome:
    """A line of /proc/self/status that shows rights."""
    with open("/proc/self/status") as file:
        [value] = [line.split()[1] for line in file if line.startswith(f"{name}:")]
    return value not in harmless, value


def open_path(path: str, flags: str = "r") -> Outcome:
    """A file of the kernel, opened and, if for reading, read; `*` stands for any name, `|` separates paths."""
    found = sorted(name for one in path.split("|") for name in glob.glob(one))
    if not found:
        raise FileNotFoundError(errno.ENOENT, path)
    descriptor = os.open(found[0], os.O_RDONLY | os.O_NONBLOCK if flags == "r" else os.O_WRONLY)
    text = os.read(descriptor, 16_384) if flags == "r" else b""
    os.close(descriptor)
    return flags == "w" or bool(text.strip(b"\0\n")), f"{found[0]}: {text[:60]!r}"


def shows(path: str, needle: str, absent: str = "") -> Outcome:
    """A text in a file of the kernel."""
    with open(path, errors="replace") as file:
        text = file.read(200_000)
    return needle in text and (not absent or absent not in text), f"{len(text)} characters"


def kernel_addresses() -> Outcome:
    """Addresses of the kernel's functions, which exploits need."""
    with open("/proc/kallsyms") as file:
        address = file.readline().split()[0]
    return int(address, 16) != 0, address


def processes_of_host() -> Outcome:
    """Processes beside those of the container."""
    numbers = [one for one in os.listdir("/proc") if one.isdigit()]
    return len(numbers) > 40, f"{len(numbers)} processes"


def kernel_thread_visible() -> Outcome:
    """Kernel threads, which have no command line."""
    with open("/proc/2/comm") as file:
        name = file.read()
    return "kthreadd" in name, name


def devices() -> Outcome:
    """Devices beside the harmless ones."""
    harmless = {"null", "zero", "full", "random", "urandom", "tty", "pts", "ptmx", "shm", "mqueue", "core", "fd"}
    found = set(os.listdir("/dev")) - harmless - {"stdin", "stdout", "stderr", "console"}
    return bool(found), f"{sorted(found)[:5]}"


def vsock(host: int, port: int) -> Outcome:
    """The socket that leads from a virtual machine to its hypervisor."""
    socket.socket(40, socket.SOCK_STREAM).close()
    return True, f"a socket to {host}:{port} could be connected"


def lower_score() -> Outcome:
    """The score by which the kernel kills processes that want memory, below its value."""
    with open("/proc/self/oom_score_adj", "r+") as file:
        value = int(file.read())
        file.seek(0)
        file.write(str(value - 1))
        file.flush()
    return True, f"{value - 1}"


def raise_priority() -> Outcome:
    """A better place at the processor."""
    return True, f"{os.nice(-5)}"


def real_time() -> Outcome:
    """A place before every other process."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    return True, "SCHED_FIFO"


def raise_limit(kind: int) -> Outcome:
    """A limit of the process above its maximum."""
    _, hard = resource.getrlimit(kind)
    try:
        resource.setrlimit(kind, (hard + 1, hard + 1) if hard != resource.RLIM_INFINITY else (hard, hard))
    except ValueError as error:
        raise PermissionError(errno.EPERM, str(error)) from None
    return True, f"above {hard}"


def join_cgroup() -> Outcome:
    """Another control group, where other limits hold."""
    paths = glob.glob("/sys/fs/cgroup/pids/cgroup.procs") + glob.glob("/sys/fs/cgroup/cgroup.procs")
    with open(paths[0], "w") as file:
        file.write(str(os.getpid()))
    return True, "joined"


def make_cgroup() -> Outcome:
    """A control group of one's own."""
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
