"""The addresses that limits count by, behind a proxy."""

import asyncio
from typing import Any

import pytest
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from api.limits.addresses import client_address, proxy_addresses

CLIENT = "198.51.100.1"


def address_of(peer: str, trusted: str) -> str:
    """The client's address of a request from that peer, with a proxy's header."""
    found: list[str] = []

    async def note(scope: Any, _receive: Any, _send: Any) -> None:
        found.append(client_address(scope))

    scope = {"type": "http", "client": (peer, 1), "headers": [(b"x-forwarded-for", CLIENT.encode())]}
    # As `api.__main__` configures uvicorn.
    asyncio.run(ProxyHeadersMiddleware(note, proxy_addresses(trusted))(scope, None, None))  # type: ignore[arg-type]
    return found[0]


@pytest.mark.parametrize("trusted", ["127.0.0.1,::1", "::1, 127.0.0.0/8"])
# The second one is what a socket on `::` shows of a connection by IPv4.
@pytest.mark.parametrize("peer", ["127.0.0.1", "::ffff:127.0.0.1", "::1"])
def test_trusted_proxy_names_the_address(peer: str, trusted: str) -> None:
    assert address_of(peer, trusted) == CLIENT


@pytest.mark.parametrize("trusted", ["", "192.0.2.0/24", "proxy.example"])
def test_other_peers_count_by_themselves(trusted: str) -> None:
    assert [address_of(peer, trusted) for peer in ("127.0.0.1", "::ffff:127.0.0.1")] == ["127.0.0.1"] * 2
