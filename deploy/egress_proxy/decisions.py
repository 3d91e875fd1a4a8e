"""The program that decides for Squid whether a sandbox may reach a host: decisions.py FOLDER PORT...

It runs as the proxy's user, with the system's Python, and without the rest of this service. FOLDER has a file for each
sandbox's address (`worker.network.proxy`), which is read for each request, so a change applies immediately. PORTs are
the ports that are allowed for names without a port. Squid runs it as a URL rewriter (`url_rewrite_program`): Squid
sends a line for each request, and the reply is a note that its rules read.
"""

import sys
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

MAX_BYTES = 64 * 1024
ANYTHING = "*"


def main(folder: Path, ports: Sequence[str]) -> None:
    """Reply to each line of the standard input. Lines are bytes: a sandbox chooses most of them."""
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(reply(folder, ports, line))
        sys.stdout.buffer.flush()


def reply(folder: Path, ports: Sequence[str], line: bytes) -> bytes:
    """The reply to `NUMBER URL SANDBOX HOST PORT`; the reply to any other line denies the request."""
    number, *question = line.rstrip(b"\n").split(b" ")
    return b"%s OK allowed=%s\n" % (number, b"yes" if _is_allowed(folder, ports, question) else b"no")


def matches(target: str, host: str, port: str, ports: Sequence[str]) -> bool:
    """Whether a line of a sandbox's file allows a host, in lower case, and a port."""
    name, _, own = target.partition(":")
    if port not in ((own,) if own else ports):
        return False
    if name == ANYTHING:
        return True
    if name.startswith("*."):
        return host.endswith(name[1:]) and host != name[1:]
    return _is_in(host, name) if "/" in name else host == name


def _is_allowed(folder: Path, ports: Sequence[str], question: Sequence[bytes]) -> bool:
    try:
        _, *fields = question
        sandbox, host, port = (part.decode("ascii") for part in fields)
        listed = _read(folder / str(IPv4Address(sandbox)))
    except (OSError, ValueError):
        return False
    if "%" in host:  # Squid would resolve another name than the decoded one
        return False
    host = host.lower().removesuffix(".")
    return any(matches(target, host, port, ports) for target in listed)


def _read(file: Path) -> Iterable[str]:
    with file.open(encoding="ascii") as opened:
        return opened.read(MAX_BYTES).split()


def _is_in(host: str, network: str) -> bool:
    try:
        return IPv4Address(host) in IPv4Network(network)
    except ValueError:
        return False


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
