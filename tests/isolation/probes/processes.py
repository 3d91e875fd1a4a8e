"""Probes of the agent server's process, by programs of the same user."""

import ctypes
import errno
import os
import signal
import socket

from tests.isolation.probes.base import Outcome, agent_server

libc = ctypes.CDLL(None, use_errno=True)
PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17


def seize(process: str = "") -> Outcome:
    """Attach to the agent server, or to another process, as a debugger."""
    number = int(process or agent_server())
    if libc.ptrace(PTRACE_SEIZE, number, 0, 0) == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return True, f"process {number}"


def seize_child() -> Outcome:
    """Attach to a child of this process, as debuggers must be able to."""
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        return seize(str(child))
    finally:
        os.kill(child, signal.SIGKILL)


def read_by_call(process: str = "") -> Outcome:
    """Read the memory of the agent server by process_vm_readv."""
    number = int(process or agent_server())
    buffer, long = ctypes.create_string_buffer(16), ctypes.c_long
    local = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 16)
    remote = (ctypes.c_void_p * 2)(4096, 16)  # an unmapped address: a permitted caller gets EFAULT
    libc.syscall(long(310), long(number), local, long(1), remote, long(1), long(0))
    code = ctypes.get_errno()
    return code == errno.EFAULT, errno.errorcode.get(code, "no error")


def steal_descriptor(process: str = "") -> Outcome:
    """Copy a file descriptor of the agent server by pidfd_getfd."""
    descriptor = os.pidfd_open(int(process or agent_server()))
    if libc.syscall(438, descriptor, 0, 0) == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return True, "a descriptor"


def share_port(port: int, address: str) -> Outcome:
    """Listen on the agent server's port, at another address or at the same, to receive its connections."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind((address, port))
        one.listen()
    return True, "listening"
