"""IP addresses: ranges that no sandbox reaches, ranges that only an egress list opens, and addresses in URLs.

All decisions about addresses use these ranges: the firewall's rules, the egress proxy, and the API's requests to hosts
that users name.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

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
