"""Model servers on private addresses. Sandboxes reach those that operators allow and owners' settings name."""

from ipaddress import IPv4Address
from urllib.parse import urlsplit

from sqlmodel import Session, col, select

from shared.addresses import NEVER
from shared.errors import Invalid, NotFound
from shared.models import ModelServer

DEFAULT_PORTS = {"http": 80, "https": 443}


def normalize(text: str) -> str:
    """An `address:port` in the form that is stored.

    Raises:
        Invalid: it is not an IPv4 address and a port, or no server that a sandbox could reach.
    """
    host, _, port = text.strip().rpartition(":")
    try:
        address, number = IPv4Address(host), int(port)
    except ValueError:
        address, number = None, 0
    if address is None or not 1 <= number <= 65535:
        raise Invalid(f"invalid model server {text[:64]!r}: use an IPv4 address and a port, such as 192.168.1.20:8000")
    if any(address in network for network in NEVER):
        raise Invalid(f"{address} is never reachable from a sandbox: let the server listen on another address")
    return f"{address}:{number}"


def allow(session: Session, text: str) -> str:
    """Let the sandboxes whose owners' settings name a server reach it. Safe to repeat.

    Raises:
        Invalid: see `normalize`.
    """
    address = normalize(text)
    if session.get(ModelServer, address) is None:
        session.add(ModelServer(address=address))
    return address


def refuse(session: Session, text: str) -> str:
    """Stop letting sandboxes reach a server.

    Raises:
        Invalid: see `normalize`.
        NotFound: it was not allowed by `allow`.
    """
    address = normalize(text)
    row = session.get(ModelServer, address)
    if row is None:
        raise NotFound("model server", address, by="address")
    session.delete(row)
    return address


def list_allowed(session: Session) -> list[ModelServer]:
    """Return the servers that `allow` added, ordered by address."""
    return list(session.exec(select(ModelServer).order_by(col(ModelServer.address))).all())


def read_setting(text: str) -> list[str]:
    """The servers of AW_MODEL_SERVERS, which is comma-separated.

    Raises:
        Invalid: see `normalize`.
    """
    return [normalize(item) for item in text.split(",") if item.strip()]


def server_address(url: str, gateway: str) -> str | None:
    """The `address:port` of a base URL; None if its host is a name. `host.docker.internal` is the node's `gateway`."""
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORTS.get(parts.scheme, 0)
        host = gateway if parts.hostname == "host.docker.internal" else parts.hostname or ""
        return f"{IPv4Address(host)}:{port}" if port else None
    except ValueError:
        return None
