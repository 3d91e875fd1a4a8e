"""Attacks by system calls that a sandbox must not use. Controls run as root on the machine, in a child process.

The arguments make a permitted call fail later or change only its own process: an invalid pointer, a file that does not
exist, a wrong magic number.
"""

import socket
from functools import partial

from tests.isolation.attack import Attack, at

attack = partial(Attack, "system calls")

INSIDE, HOST = "A", "host"
NOWHERE = "/does/not/exist"
PAGE = "pointer"
NEW_USER, NEW_MOUNT, NEW_NETWORK, NEW_PID, NEW_IPC, NEW_UTS, NEW_CGROUP, NEW_TIME = (
    0x10000000,
    0x20000,
    0x40000000,
    0x20000000,
    0x8000000,
    0x4000000,
    0x2000000,
    0x80,
)


def _same(name: str, function: str, /, **arguments: object) -> Attack:
    return attack(name, at(INSIDE, f"kernel.{function}", **arguments), at(HOST, f"kernel.{function}", **arguments))


def _call(name: str, number: int, *arguments: int | str) -> Attack:
    return _same(name, "call", number=number, arguments=[*arguments])


def _socket(name: str, family: int, kind: int, protocol: int = 0) -> Attack:
    arguments = {"family": family, "kind": kind, "protocol": protocol}
    return attack(name, at(INSIDE, "network.open_socket", **arguments), at(HOST, "network.open_socket", **arguments))


def _enters(name: str, kind: str) -> Attack:
    return attack(
        name,
        at(INSIDE, "kernel.enter_namespace", process="1", kind=kind),
        at(HOST, "kernel.enter_namespace", process="$api_pid", kind=kind),
    )


NAMESPACES = [
    _call("creates a user namespace", 272, NEW_USER),
    _call("creates a mount namespace", 272, NEW_MOUNT),
    _call("creates a network namespace", 272, NEW_NETWORK),
    _call("creates a pid namespace", 272, NEW_PID),
    _call("creates an IPC namespace", 272, NEW_IPC),
    _call("creates a UTS namespace", 272, NEW_UTS),
    _call("creates a cgroup namespace", 272, NEW_CGROUP),
    _same("creates a child in a user namespace by clone3", "clone3", flags=NEW_USER),
    _same("creates a child in a mount namespace by clone3", "clone3", flags=NEW_MOUNT),
    _enters("enters the first process's mount namespace", "mnt"),
    _enters("enters the first process's network namespace", "net"),
    _enters("enters the first process's pid namespace", "pid"),
]
MOUNTS = [
    _same("mounts a tmpfs", "mount", kind="tmpfs"),
    _same("mounts another /proc", "mount", kind="proc"),
    _same("bind-mounts a folder", "mount", kind="", source="/etc", flags=4096),
    _same("mounts an overlay", "mount", kind="overlay"),
    _same("makes a read-only mount writable", "remount_writable", path="/proc/sys"),
    _call("unmounts", 166, NOWHERE, 0),
    _call("opens a file system by fsopen", 430, "tmpfs", 0),
    _call("opens a mount tree", 428, -100, "/", 1),
    _call("moves a mount", 429, -1, NOWHERE, -1, NOWHERE, 0),
    _call("changes attributes of a mount", 442, -1, NOWHERE, 0, PAGE, 32),
    _call("pivots the root", 155, NOWHERE, NOWHERE),
    _same("changes its root", "change_root"),
    _same("creates a block device", "make_device", kind="block", major=254, minor=0),
    _same("creates a character device for memory", "make_device", kind="character", major=1, minor=1),
]
PROGRAMS = [
    _same("creates a BPF map", "bpf"),
    _same("opens a performance counter", "perf"),
    _same("creates an io_uring", "io_uring"),
    _call("catches page faults (userfaultfd)", 323, 1),
    _call("adds a key to the kernel", 248, "user", "attack", PAGE, 8, -2),
    _call("requests a key from the kernel", 249, "user", "attack", 0, -2),
    _call("joins a session keyring", 250, 1, 0),
    _call("loads a module", 175, PAGE, 4096, ""),
    _call("loads a module from a file", 313, -1, "", 0),
    _call("unloads a module", 176, "does_not_exist", 2048),
    _call("loads another kernel", 246, 0, 4096, PAGE, 0),
    _call("loads another kernel from a file", 320, -1, -1, 0, PAGE, 0),
    _call("watches the whole file system", 300, 0, 0),
    _call("opens a file by its handle", 304, -100, PAGE, 0),
    _call("compares resources of processes", 312, 0, 0, 0, 0, 0),
    _call("sets a quota", 179, 0x80000700, NOWHERE, 0, PAGE),
]
MACHINE = [
    _call("restarts the machine", 169, 0, 0, 0),
    _call("sets the clock", 164, 0, 0),
    _call("sets a clock by its id", 227, 0, 1),
    _call("sets the host name", 170, PAGE, -1),
    _call("sets the domain name", 171, PAGE, -1),
    _call("turns on swap", 167, NOWHERE, 0),
    _call("turns off swap", 168, NOWHERE),
    _call("turns on process accounting", 163, NOWHERE),
    _call("uses I/O ports", 173, 0x80, 1, 1),
    _call("uses all I/O ports", 172, 3),
    _call("reads the kernel's log", 103, 3, PAGE, 100),
    _call("sets the log level of the kernel", 103, 8, 0, 0),
    _call("sets its NUMA policy", 238, 0, 0, 0),
    _call("moves pages of processes to another NUMA node", 279, 0, 0, 0, 0, 0, 0),
    _call("turns off address randomization for itself", 135, 0x0040000),
]
SOCKETS = [
    _socket("opens a socket to the hypervisor (vsock)", 40, socket.SOCK_STREAM),
    _socket("opens a socket of the kernel's crypto API", 38, socket.SOCK_SEQPACKET),
    _socket("opens a Bluetooth socket", 31, socket.SOCK_RAW, 1),
    _socket("opens a CAN socket", 29, socket.SOCK_RAW, 1),
    _socket("opens a socket of the IPsec key management", 15, socket.SOCK_RAW, 2),
    _socket("opens an RDS socket", 21, socket.SOCK_SEQPACKET),
    _socket("opens a TIPC socket", 30, socket.SOCK_STREAM),
    _socket("opens an AX.25 socket", 3, socket.SOCK_DGRAM),
]
ATTACKS = [*NAMESPACES, *MOUNTS, *PROGRAMS, *MACHINE, *SOCKETS]
