"""The client address that limits count by."""

from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, ip_address

from starlette.types import Scope

# The prefix of the smallest network that an IPv6 provider gives a customer: a client may change its address within it
# at will (RFC 6177).
IPV6_PREFIX_BITS = 64


def client_address(scope: Scope) -> str:
    """Return the client's address; for IPv6, its network.

    Behind a proxy that `AW_TRUSTED_PROXIES` lists, the server has replaced the proxy's address by the one in the
    proxy's headers.
    """
    client = scope.get("client")
    return group(client[0] if client else "")


@lru_cache(1024)
def group(address: str) -> str:
    """Return the address, or the /64 of an IPv6 address. A text that is no address is returned as it is, shortened."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is None:
        return f"{IPv6Address(int(parsed) >> IPV6_PREFIX_BITS << IPV6_PREFIX_BITS)}/{IPV6_PREFIX_BITS}"
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)


def proxy_addresses(text: str) -> list[str]:
    """Return the addresses and networks of `AW_TRUSTED_PROXIES`, those of IPv4 also in the form of IPv6.

    A socket on `::` accepts connections by IPv4, too, and shows their addresses in that form (RFC 4291, 2.5.5.2).
    """
    listed = [item.strip() for item in text.split(",")]
    return [*listed, *filter(None, map(_mapped, listed))]


def _mapped(text: str) -> str | None:
    try:
        network = IPv4Network(text)
    except ValueError:
        return None
    return f"::ffff:{network.network_address}/{96 + network.prefixlen}"
