"""IP addresses: ranges that no sandbox reaches, ranges that only an egress list opens, and addresses in URLs and lists.

All decisions about addresses use these ranges: the firewall's rules, the egress proxy, and the API's requests to hosts
that users name.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Annotated

from pydantic import AfterValidator

# Ranges that no sandbox reaches: the machine itself, link-local addresses (with clouds' metadata service), multicast.
NEVER = tuple(map(IPv4Network, ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3")))
# Further ranges that are not public (IANA's special-purpose registry). An egress list may open them. 168.63.129.16 is
# Azure's metadata service, in a public range. Azure's machines also use it as their resolver, so it may be listed.
LISTED_ONLY = tuple(
    map(
        IPv4Network,
        (
            "10.0.0.0/8",
            "100.64.0.0/10",
            "168.63.129.16/32",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
        ),
    )
)


# IPv6 has public addresses only in this range, without those of Teredo and 6to4, which embed IPv4 addresses, and those
# for documentation, which Python 3.11 does not know.
UNICAST = IPv6Network("2000::/3")
NOT_PUBLIC = tuple(map(IPv6Network, ("2001::/32", "2002::/16", "3fff::/20")))


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address is public: not inside a machine, a private network or a tunnel, and not an embedded one."""
    if isinstance(address, IPv6Address):
        return address.is_global and address in UNICAST and not any(address in each for each in NOT_PUBLIC)
    is_special = address.is_multicast or address.is_unspecified or address.is_reserved
    return address.is_global and not is_special and not any(address in each for each in (*NEVER, *LISTED_ONLY))


def in_url(host: str) -> str:
    """Return a host as it appears in a URL: an IPv6 address has brackets there."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def split_list(text: str) -> list[str]:
    """The items of a list with commas."""
    return [item.strip() for item in text.split(",") if item.strip()]


def check_networks(text: str) -> str:
    """The text, if it lists addresses and networks.

    Raises:
        ValueError: an item is neither.
    """
    for item in split_list(text):
        try:
            ip_network(item)
        except ValueError:
            raise ValueError(f"{item[:64]!r} is no address and no network such as 10.0.0.0/8 or fd00::/8") from None
    return text


def read_server(text: str) -> str:
    """An `address:port` of a server that sandboxes could reach, in the form that is stored.

    Raises:
        ValueError: it is not an IPv4 address and a port, or no sandbox reaches it.
    """
    host, _, port = text.strip().rpartition(":")
    try:
        address, number = IPv4Address(host), int(port)
    except ValueError:
        address, number = None, 0
    if address is None or not 1 <= number <= 65535:
        raise ValueError(f"invalid model server {text[:64]!r}: use an IPv4 address and a port, as 192.168.1.20:8000")
    if any(address in network for network in NEVER):
        raise ValueError(f"{address} is never reachable from a sandbox: let the server listen on another address")
    return f"{address}:{number}"


def read_servers(text: str) -> str:
    """The servers of a list with commas, each as `read_server` returns it.

    Raises:
        ValueError: see `read_server`.
    """
    return ",".join(map(read_server, split_list(text)))


Networks = Annotated[str, AfterValidator(check_networks)]
ModelServers = Annotated[str, AfterValidator(read_servers)]
