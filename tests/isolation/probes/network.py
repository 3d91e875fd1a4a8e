"""Probes of networks: connections, datagrams, and changes of addresses, routes and neighbours."""

import array
import contextlib
import errno
import fcntl
import os
import socket
import struct
import time

from tests.isolation.probes.base import Outcome

# The greeting proves that a listener of the tests was reached: a proxy on the path may accept any connection.
GREETING = b"agent-workspace listener"
SECONDS = 3.0
ICMP_ECHO = bytes([8, 0, 0, 0, 0, 1, 0, 1])


def connect(host: str, port: int) -> Outcome:
    """Connect by TCP to a listener of the tests, and receive its greeting."""
    with socket.create_connection((host, int(port)), SECONDS) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        said = connection.recv(200)
    return GREETING in said, repr(said[:60])


def speaks_http(host: str, port: int, path: str = "/health", server: str = "server: uvicorn") -> Outcome:
    """Get an HTTP response of an agent server, with this header."""
    with socket.create_connection((host, int(port)), SECONDS) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        said = connection.recv(1000)
    return server.encode() in said, repr(said[:60])


def connect_ipv6(host: str, port: int, device: str) -> Outcome:
    """Connect to a listener at a link-local IPv6 address."""
    scope = socket.if_nametoindex(device)
    with socket.socket(socket.AF_INET6) as connection:
        connection.settimeout(SECONDS)
        connection.connect((host, int(port), 0, scope))
        said = connection.recv(200)
    return GREETING in said, repr(said[:60])


def scan(host: str, ports: list[int | str]) -> Outcome:
    """Find ports that accept a connection."""
    found = []
    for port in ports:
        with socket.socket() as connection:
            connection.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                if connection.connect_ex((host, int(port))) == 0:
                    found.append(port)
    return bool(found), f"open: {found}"


def datagram(host: str, port: int, size: int = 20, protocol: int = 0) -> Outcome:
    """Send a UDP datagram, in fragments if it is long, and get the response of a listener."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, protocol) as sender:
        sender.settimeout(SECONDS)
        sender.sendto(b"x" * size, (host, int(port)))
        said = sender.recv(200)
    return GREETING in said, repr(said)


def send_only(host: str, port: int, token: str, size: int = 0) -> Outcome:
    """Send a datagram, also to a broadcast or multicast address. Another probe checks who received it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 4)
        sender.sendto(token.encode().ljust(size), (host, int(port)))
    return True, "sent"


def heard(token: str, path: str) -> Outcome:
    """Check whether a listener of the tests received a datagram with the token."""
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:
        with open(path) as file:
            if token in file.read():
                return True, "received"
        time.sleep(0.1)
    return False, "not received"


def ping(host: str) -> Outcome:
    """Send an ICMP echo, by the kind of socket that needs no privileges."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as sender:
        sender.settimeout(SECONDS)
        sender.sendto(ICMP_ECHO, (host, 0))
        return sender.recv(100)[0] == 0, "echo reply"


def query_name(server: str, name: str) -> Outcome:
    """Send a DNS query for a name that contains data. Any response except a refusal is a leak."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    query = struct.pack(">6H", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", 16, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.settimeout(SECONDS)
        sender.sendto(query, (server, 53))
        response = sender.recv(2000)
    code = response[3] & 15
    return code not in (2, 5), f"rcode {code}"


def query_resolvers(name: str) -> Outcome:
    """Send the query of `query_name` to each resolver of the container."""
    with open("/etc/resolv.conf") as file:
        servers = [line.split()[1] for line in file if line.startswith("nameserver")]
    found = []
    for server in servers:
        try:
            found.append((server, *query_name(server, name)))
        except OSError as error:
            found.append((server, False, type(error).__name__))
    return any(one[1] for one in found), str(found)


def open_socket(family: int, kind: int, protocol: int = 0) -> Outcome:
    """Open a socket of a family with more access than streams and datagrams."""
    socket.socket(family, kind, protocol).close()
    return True, "a socket"


def set_option(level: int, option: int, value: int) -> Outcome:
    """Set a socket option that needs privileges."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.setsockopt(level, option, value)
    return True, "set"


def bind_to(address: str) -> Outcome:
    """Bind a socket to another machine's address."""
    with socket.socket() as one:
        one.bind((address, 0))
    return True, "bound"


def spoof_source(source: str, target: str, port: int, token: str) -> Outcome:
    """Send a datagram with another machine's address as its source."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        with contextlib.suppress(PermissionError):
            one.setsockopt(socket.IPPROTO_IP, 19, 1)  # IP_TRANSPARENT
        one.setsockopt(socket.IPPROTO_IP, 15, 1)  # IP_FREEBIND
        one.bind((source, 0))
        one.sendto(token.encode(), (target, int(port)))
    return True, "sent"


def change_address(device: str, address: str) -> Outcome:
    """Set the address of an interface (SIOCSIFADDR)."""
    request = struct.pack("16sHH4s8x", device.encode(), socket.AF_INET, 0, socket.inet_aton(address))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        fcntl.ioctl(one, 0x8916, request)
    return True, "changed"


def change_hardware_address(device: str) -> Outcome:
    """Set the hardware address of an interface to its current value (SIOCSIFHWADDR)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        request = array.array("B", struct.pack("16s24x", device.encode()))
        fcntl.ioctl(one, 0x8927, request)
        fcntl.ioctl(one, 0x8924, request)
    return True, "changed"


def add_neighbour(device: str, address: str) -> Outcome:
    """Add an ARP entry (SIOCSARP)."""
    place = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
    hardware = struct.pack("H14s", 1, bytes([2, 0, 0, 0, 0, 9]))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        fcntl.ioctl(one, 0x8955, place + hardware + struct.pack("i", 4) + bytes(16) + device.encode().ljust(16, b"\0"))
    return True, "added"


def add_route(device: str, network: str) -> Outcome:
    """Add a route by netlink."""
    attributes = struct.pack("HH4s", 8, 1, socket.inet_aton(network))
    attributes += struct.pack("HHi", 8, 4, socket.if_nametoindex(device))
    message = struct.pack("8BI", socket.AF_INET, 32, 0, 0, 254, 4, 253, 1, 0) + attributes
    header = struct.pack("IHHII", 16 + len(message), 24, 0x1 | 0x4 | 0x400, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as one:
        one.send(header + message)
        code = -struct.unpack_from("i", one.recv(4096), 16)[0]
    return code == 0, errno.errorcode.get(code, "added")


def change_sysctl(path: str) -> Outcome:
    """Open a network setting of the kernel for writing."""
    os.close(os.open(path, os.O_WRONLY))
    return True, "opened"
