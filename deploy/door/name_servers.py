"""The name servers by which a door follows the API's name to another address."""

import socket
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

HOSTS, RESOLVERS = Path("/etc/hosts"), Path("/etc/resolv.conf")
PORT = 53


def find_name_servers(host: str) -> list[str]:
    """Return the addresses and ports of this machine's name servers.

    There are none for an address, and for a name in this machine's own file: name servers may have another address.
    """
    if _is_address(host) or any(host in words[1:] for words in _read(HOSTS)):
        return []
    named = [words[1] for words in _read(RESOLVERS) if words[0] == "nameserver" and len(words) > 1]
    return [f"[{text}]:{PORT}" if ":" in text else f"{text}:{PORT}" for text in named if _is_usable(text)]


def find_family(host: str) -> str:
    """Return the kind of address that this machine prefers for a name: `ipv4` or `ipv6`."""
    with suppress(OSError):
        return "ipv6" if socket.getaddrinfo(host, None)[0][0] == socket.AF_INET6 else "ipv4"
    return "ipv4"


def _read(file: Path) -> list[list[str]]:
    """The words of each line, without comments."""
    with suppress(OSError):
        lines = file.read_text(errors="replace").lower().splitlines()
        return [words for line in lines if (words := line.partition("#")[0].split())]
    return []


def _is_usable(text: str) -> bool:
    """Whether there is a route to a name server: HAProxy does not start without one."""
    if not _is_address(text):
        return False
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((text, PORT))  # sends nothing
        return True
    return False


def _is_address(text: str) -> bool:
    """Whether the text is an address that HAProxy can read, too: it knows no zones."""
    with suppress(ValueError):
        return "%" not in str(ip_address(text))
    return False
