"""Attacks on other sandboxes, on the node, and on the networks around it."""

import socket
from functools import partial

from tests.isolation.attack import Attack, Attempt, at

attack = partial(Attack, "network")

NEIGHBOUR, NODE, OUTSIDE = "$B_ip", "$A_gateway", "$public"
INSIDE, PLAIN, HOST, LAN = "A", "plain", "host", "lan"


def _heard(place: str, token: str, path: str = "$heard") -> Attempt:
    return at(place, "network.heard", token=token, path=path)


def _sent(place: str, host: str, port: int, token: str, receiver: str, size: int = 0) -> Attempt:
    then = _heard(receiver, token, "$heard_on_host" if receiver == HOST else "$heard")
    return at(place, "network.send_only", then, host=host, port=port, token=token, size=size)


def _reach(name: str, host: str, port: int | str, control: Attempt) -> Attack:
    return attack(name, at(INSIDE, "network.connect", host=host, port=port), control)


def _neighbours() -> list[Attack]:
    from_peer = partial(at, PLAIN, host="$peer_ip")
    return [
        attack(
            "connects to a neighbour's agent server",
            at(INSIDE, "network.speaks_http", host=NEIGHBOUR, port=8000),
            at("B", "network.speaks_http", host="127.0.0.1", port=8000),
        ),
        _reach("connects to a neighbour's own web server", NEIGHBOUR, 5000, from_peer("network.connect", port=5000)),
        attack(
            "uses a neighbour's agent server with its leaked key",
            at(
                INSIDE,
                "http.request",
                url="http://$B_ip:8000/api/conversations/count",
                headers={"X-Session-API-Key": "$B_key"},
            ),
            at(
                "B",
                "http.request",
                url="http://127.0.0.1:8000/api/conversations/count",
                headers={"X-Session-API-Key": "$B_key"},
            ),
        ),
        attack(
            "connects to a sandbox of the same user",
            at(INSIDE, "network.speaks_http", host="$A2_ip", port=8000, server="Server: BaseHTTP"),
            at("A2", "network.speaks_http", host="127.0.0.1", port=8000, server="Server: BaseHTTP"),
        ),
        attack(
            "scans a neighbour's ports",
            at(INSIDE, "network.scan", host=NEIGHBOUR, ports=[22, 80, 5000, 8000]),
            from_peer("network.scan", ports=[22, 80, 5000, 8000]),
        ),
        attack("pings a neighbour", at(INSIDE, "network.ping", host=NEIGHBOUR), from_peer("network.ping")),
        attack(
            "exchanges datagrams with a neighbour",
            at(INSIDE, "network.datagram", host=NEIGHBOUR, port=5001),
            from_peer("network.datagram", port=5001),
        ),
        attack(
            "sends a datagram in fragments to a neighbour",
            _sent(INSIDE, NEIGHBOUR, 5001, "fragments-$token", "B", 8000),
            _sent(PLAIN, "$peer_ip", 5001, "fragments-control-$token", "peer", 8000),
        ),
        attack(
            "sends a datagram to a neighbour without a response",
            _sent(INSIDE, NEIGHBOUR, 5001, "one-way-$token", "B"),
            _sent(PLAIN, "$peer_ip", 5001, "one-way-control-$token", "peer"),
        ),
        attack(
            "broadcasts to all neighbours",
            _sent(INSIDE, "$A_broadcast", 5001, "broadcast-$token", "B"),
            _sent(PLAIN, "$plain_broadcast", 5001, "broadcast-control-$token", "peer"),
        ),
        attack(
            "broadcasts to every host of the link",
            _sent(INSIDE, "255.255.255.255", 5001, "limited-$token", "B"),
            _sent(PLAIN, "255.255.255.255", 5001, "limited-control-$token", "peer"),
        ),
        attack(
            "sends multicasts to neighbours",
            _sent(INSIDE, "224.0.0.251", 5353, "multicast-$token", "B"),
            _sent(PLAIN, "224.0.0.251", 5353, "multicast-control-$token", "peer"),
        ),
        attack(
            "exchanges datagrams of UDP-Lite with a neighbour",
            at(INSIDE, "network.datagram", host=NEIGHBOUR, port=5001, protocol=socket.IPPROTO_UDPLITE),
            from_peer("network.datagram", port=5001, protocol=socket.IPPROTO_UDPLITE),
        ),
        attack(
            "opens an SCTP connection",
            at(INSIDE, "network.open_socket", family=socket.AF_INET, kind=socket.SOCK_STREAM, protocol=132),
            at(HOST, "network.open_socket", family=socket.AF_INET, kind=socket.SOCK_STREAM, protocol=132),
        ),
    ]


def _node() -> list[Attack]:
    on_host = partial(at, HOST, "network.connect")
    return [
        _reach(
            "connects to a port of the node at the gateway",
            NODE,
            "$gateway_port",
            on_host(host=NODE, port="$gateway_port"),
        ),
        _reach(
            "connects to a port of all addresses of the node", NODE, "$any_port", on_host(host=NODE, port="$any_port")
        ),
        _reach(
            "connects to a loopback port of the node at the gateway",
            NODE,
            "$loopback_port",
            on_host(host="127.0.0.1", port="$loopback_port"),
        ),
        _reach(
            "connects to the node by the name host.docker.internal",
            "host.docker.internal",
            "$any_port",
            on_host(host=NODE, port="$any_port"),
        ),
        _reach(
            "connects to the node at its address in the LAN",
            "$host_on_lan",
            "$any_port",
            at(LAN, "network.connect", host="$host_on_lan", port="$any_port"),
        ),
        _reach(
            "connects to the node at another bridge's gateway",
            "$plain_gateway",
            "$any_port",
            at(PLAIN, "network.connect", host="$plain_gateway", port="$any_port"),
        ),
        attack(
            "scans the node's ports",
            at(INSIDE, "network.scan", host=NODE, ports=[22, 53, 2375, "$any_port"]),
            at(PLAIN, "network.scan", host="$plain_gateway", ports=[22, 53, 2375, "$any_port"]),
        ),
        attack(
            "sends datagrams to the node",
            at(INSIDE, "network.datagram", host=NODE, port="$any_port"),
            at(PLAIN, "network.datagram", host="$plain_gateway", port="$any_port"),
        ),
        attack(
            "pings the node", at(INSIDE, "network.ping", host=NODE), at(PLAIN, "network.ping", host="$plain_gateway")
        ),
        attack(
            "pings the node at its address in the LAN",
            at(INSIDE, "network.ping", host="$host_on_lan"),
            at(LAN, "network.ping", host="$host_on_lan"),
        ),
        attack(
            "connects to the node's IPv6 link-local address",
            at(INSIDE, "network.connect_ipv6", host="$link_local", port="$ipv6_port", device="eth0"),
            at(HOST, "network.connect_ipv6", host="$link_local", port="$ipv6_port", device="$bridge"),
        ),
        attack(
            "has an IPv6 address",
            at(INSIDE, "kernel.open_path", path="/proc/net/if_inet6"),
            at(HOST, "kernel.open_path", path="/proc/net/if_inet6"),
        ),
        attack(
            "connects to a container beside the service's sandboxes",
            at(INSIDE, "network.connect", host="$peer_ip", port=5000),
            at(PLAIN, "network.connect", host="$peer_ip", port=5000),
        ),
        attack(
            "attacks sandboxes from a container beside them",
            at(PLAIN, "network.connect", host="$B_ip", port=5000),
            at("B", "network.connect", host="127.0.0.1", port=5000),
        ),
    ]


def _lan() -> list[Attack]:
    from_plain = partial(at, PLAIN)
    return [
        _reach(
            "connects to the cloud's metadata service",
            "$metadata",
            80,
            from_plain("network.connect", host="$metadata", port=80),
        ),
        attack(
            "pings the cloud's metadata service",
            at(INSIDE, "network.ping", host="$metadata"),
            from_plain("network.ping", host="$metadata"),
        ),
        attack(
            "sends datagrams to the cloud's metadata service",
            at(INSIDE, "network.datagram", host="$metadata", port=5001),
            from_plain("network.datagram", host="$metadata", port=5001),
        ),
        _reach(
            "connects to another machine of the LAN", "$lan", 80, from_plain("network.connect", host="$lan", port=80)
        ),
        _reach(
            "connects to another port of that machine",
            "$lan",
            8080,
            from_plain("network.connect", host="$lan", port=8080),
        ),
        attack(
            "pings another machine of the LAN",
            at(INSIDE, "network.ping", host="$lan"),
            from_plain("network.ping", host="$lan"),
        ),
        attack(
            "sends datagrams to another machine of the LAN",
            at(INSIDE, "network.datagram", host="$lan", port=5001),
            from_plain("network.datagram", host="$lan", port=5001),
        ),
        attack(
            "asks a name server of the LAN",
            at(INSIDE, "network.query_name", server="$lan", name="lan.$token.example"),
            from_plain("network.query_name", server="$lan", name="lan.$token.example"),
        ),
        attack(
            "is attacked from the LAN at its agent server",
            at(LAN, "network.speaks_http", host="$A_ip", port=8000),
            at(HOST, "network.speaks_http", host="$A_ip", port=8000),
        ),
        attack(
            "is attacked from the LAN at its own web server",
            at(LAN, "network.connect", host="$A_ip", port=5000),
            at(INSIDE, "network.connect", host="127.0.0.1", port=5000),
        ),
        attack(
            "is attacked from the LAN by datagrams",
            at(LAN, "network.datagram", host="$A_ip", port=5001),
            at(INSIDE, "network.datagram", host="127.0.0.1", port=5001),
        ),
        attack(
            "is pinged from the LAN",
            at(LAN, "network.ping", host="$A_ip"),
            at(INSIDE, "network.ping", host="127.0.0.1"),
        ),
        attack(
            "is used from the LAN with its leaked key",
            at(
                LAN,
                "http.request",
                url="http://$A_ip:8000/api/conversations/count",
                headers={"X-Session-API-Key": "$A_key"},
            ),
            at(
                INSIDE,
                "http.request",
                url="http://127.0.0.1:8000/api/conversations/count",
                headers={"X-Session-API-Key": "$A_key"},
            ),
        ),
        attack(
            "lets the LAN reach the service at the sandboxes' gateway",
            at(LAN, "http.serves", url="http://$A_gateway:$api_port/alive"),
            at(HOST, "http.serves", url="$api/alive"),
        ),
    ]


ATTACKS = [*_neighbours(), *_node(), *_lan()]
