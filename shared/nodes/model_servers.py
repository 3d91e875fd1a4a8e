"""Model servers on private addresses. Sandboxes reach those that operators allow and owners' settings name."""

from ipaddress import IPv4Address
from urllib.parse import urlsplit

from sqlmodel import Session, col, select

from shared.addresses import read_server
from shared.errors import Invalid, NotFound
from shared.models import ModelServer

DEFAULT_PORTS = {"http": 80, "https": 443}


def normalize(text: str) -> str:
    """An `address:port` in the form that is stored.

    Raises:
        Invalid: it is not an IPv4 address and a port, or no server that a sandbox could reach.
    """
    try:
        return read_server(text)
    except ValueError as error:
        raise Invalid(str(error)) from None


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


def server_address(url: str, gateway: str) -> str | None:
    """The `address:port` of a base URL; None if its host is a name. `host.docker.internal` is the node's `gateway`."""
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORTS.get(parts.scheme, 0)
        host = gateway if parts.hostname == "host.docker.internal" else parts.hostname or ""
        return f"{IPv4Address(host)}:{port}" if port else None
    except ValueError:
        return None
