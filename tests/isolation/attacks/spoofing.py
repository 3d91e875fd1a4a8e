"""Attacks on the network's rules: forged addresses, routes, raw packets, and data in DNS names."""

import socket
from functools import partial

from tests.isolation.attack import Attack, at

attack = partial(Attack, "spoofing and tunnels")

INSIDE, HOST, LAN, PLAIN = "A", "host", "lan", "plain"


def _as_host(name: str, function: str, /, **arguments: object) -> Attack:
    """An attack whose control runs as root on another machine, in its own network."""
    return attack(name, at(INSIDE, function, **arguments), at(LAN, function, **arguments))


def _socket(name: str, family: int, kind: int, protocol: int = 0) -> Attack:
    return _as_host(name, "network.open_socket", family=family, kind=kind, protocol=protocol)


RAW = [
    _socket("opens a packet socket (ARP spoofing)", socket.AF_PACKET, socket.SOCK_RAW, 0x0300),
    _socket("opens a packet socket of datagrams", socket.AF_PACKET, socket.SOCK_DGRAM, 0x0300),
    _socket("opens a raw IPv4 socket", socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
    _socket("opens a raw socket with its own IP headers", socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW),
    _socket("opens a raw IPv6 socket", socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6),
    _socket("opens a socket past the kernel's network stack (AF_XDP)", 44, socket.SOCK_RAW),
]
ADDRESSES = [
    attack(
        "takes a neighbour's address",
        at(INSIDE, "network.change_address", device="eth0", address="$B_ip"),
        at(LAN, "network.change_address", device="spare", address="192.0.2.78"),
    ),
    attack(
        "changes its hardware address",
        at(INSIDE, "network.change_hardware_address", device="eth0"),
        at(LAN, "network.change_hardware_address", device="spare"),
    ),
    attack(
        "writes an ARP entry for the gateway",
        at(INSIDE, "network.add_neighbour", device="eth0", address="$A_gateway"),
        at(LAN, "network.add_neighbour", device="eth0", address="192.0.2.79"),
    ),
    attack(
        "adds a route to a network that is closed",
        at(INSIDE, "network.add_route", device="eth0", network="203.0.113.0"),
        at(LAN, "network.add_route", device="others", network="203.0.113.0"),
    ),
    attack(
        "binds a neighbour's address",
        at(INSIDE, "network.bind_to", address="$B_ip"),
        at("B", "network.bind_to", address="$B_ip"),
    ),
    attack(
        "sends from a neighbour's address",
        at(INSIDE, "network.spoof_source", source="$B_ip", target="$A_gateway", port="$any_port", token="spoof"),
        at(LAN, "network.spoof_source", source="$B_ip", target="$host_on_lan", port="$any_port", token="spoof"),
    ),
    attack(
        "sends from the node's address",
        at(INSIDE, "network.spoof_source", source="$A_gateway", target="$B_ip", port=5001, token="spoof"),
        at(LAN, "network.spoof_source", source="192.0.2.77", target="$host_on_lan", port="$any_port", token="spoof"),
    ),
    _as_host("sets a firewall mark (SO_MARK)", "network.set_option", level=1, option=36, value=7),
    _as_host("binds foreign addresses (IP_TRANSPARENT)", "network.set_option", level=0, option=19, value=1),
    _as_host(
        "takes more buffers than allowed (SO_RCVBUFFORCE)", "network.set_option", level=1, option=33, value=1 << 28
    ),
    _as_host("sets the highest priority of packets", "network.set_option", level=1, option=12, value=7),
    _as_host("turns on forwarding", "network.change_sysctl", path="/proc/sys/net/ipv4/ip_forward"),
    _as_host("turns on IPv6", "network.change_sysctl", path="/proc/sys/net/ipv6/conf/all/disable_ipv6"),
    _as_host(
        "turns off the check of source addresses", "network.change_sysctl", path="/proc/sys/net/ipv4/conf/all/rp_filter"
    ),
]


def _tunnels(place: str, how: str) -> list[Attack]:
    def _to(name: str, function: str, /, **arguments: object) -> Attack:
        return attack(f"{name}{how}", at(place, function, **arguments), at(PLAIN, function, **arguments))

    return [
        _to("asks its resolver for a name that contains data", "network.query_resolvers", name="data.$token.example"),
        _to("asks a public name server", "network.query_name", server="$public", name="data.$token.example"),
        attack(
            f"asks the node for a name{how}",
            at(place, "network.query_name", server="$A_gateway", name="data.$token.example"),
            at(HOST, "network.query_name", server="$A_gateway", name="data.$token.example"),
        ),
        _to("connects to a public address", "network.connect", host="$public", port=443),
        _to("connects to a public address at an unusual port", "network.connect", host="$public", port=8080),
        _to("sends datagrams to a public address", "network.datagram", host="$public", port=5001),
        _to(
            "sends datagrams in fragments to a public address", "network.datagram", host="$public", port=5001, size=8000
        ),
        _to("pings a public address", "network.ping", host="$public"),
    ]


ATTACKS = [*RAW, *ADDRESSES, *_tunnels(INSIDE, ""), *_tunnels("A2", " without egress")]
