#!/usr/bin/python3
"""Run Debian's Chromium so that it does not see changes of the machine's network.

Other tests' containers add and remove interfaces all the time. At each change Chromium aborts the requests that wait
for a connection (net::ERR_NETWORK_CHANGED), and the web UI then takes a user whose settings it could not read for a new
one. Chromium learns of changes from netlink sockets. Without them, it assumes a network that does not change.
"""

import ctypes
import errno
import os
import socket
import struct
import sys

CHROMIUM = "/usr/bin/chromium"
SET_NO_NEW_PRIVILEGES, SET_SECCOMP = 38, 22
FILTER_MODE = 2
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000 | errno.EAFNOSUPPORT
NUMBER_OF_CALL, FIRST_ARGUMENT = 0, 16
CALL_OF_SOCKET = {"x86_64": 41, "aarch64": 198}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def refuse_netlink() -> None:
    """Let this process and its children open no netlink socket.

    Raises:
        OSError: the kernel refuses the filter.
    """
    # Operation, instructions to skip if true and if false, value.
    instructions = (
        (LOAD, 0, 0, NUMBER_OF_CALL),
        (JUMP_IF_EQUAL, 0, 3, CALL_OF_SOCKET[os.uname().machine]),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (JUMP_IF_EQUAL, 0, 1, socket.AF_NETLINK),
        (RETURN, 0, 0, FAIL),
        (RETURN, 0, 0, ALLOW),
    )
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
    process = ctypes.CDLL(None, use_errno=True)
    _require(process.prctl(SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _require(process.prctl(SET_SECCOMP, FILTER_MODE, ctypes.byref(_Program(len(instructions), code)), 0, 0))


def _require(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), "the system calls of Chromium cannot be filtered")


if __name__ == "__main__":
    refuse_netlink()
    os.execv(CHROMIUM, [CHROMIUM, *sys.argv[1:]])
