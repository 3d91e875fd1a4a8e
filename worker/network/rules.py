"""The firewall rules of a node's sandboxes, as text for nft. Pure functions.

What may pass is listed in sets, by the address of a sandbox: a change for one sandbox changes a few elements, however
many sandboxes there are. Everything else is refused.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from ipaddress import IPv4Network
from typing import Any

from shared.addresses import LISTED_ONLY, NEVER

# A node's bridge has this prefix, and so have its two tables, one of each family.
BRIDGE_PREFIX = "br-aw"
FAMILIES = ("inet", "bridge")
ADDRESS, PORT = "ipv4_addr", "inet_service"
# The types of the sets' elements; those with networks are sets of intervals.
TYPES = {
    "services": (ADDRESS, PORT),
    "resolvers": (ADDRESS,),
    "sandboxes": (ADDRESS,),
    "open": (ADDRESS,),
    "networks": (ADDRESS, ADDRESS),
    "models": (ADDRESS, ADDRESS, PORT),
}
# The source of a packet, in nft's JSON.
SOURCE = {"payload": {"protocol": "ip", "field": "saddr"}}
# Sets whose elements begin with the address of a sandbox.
OF_SANDBOXES = ("sandboxes", "open", "networks", "models")
INTERVALS = ("networks",)
# Sets that packets fill, by the address of a sandbox.
COUNTED = ("flows", "starts")
# Max flows of one sandbox in the machine's table of connections, and max new flows per second (decision 81).
MAX_FLOWS, FLOWS_PER_SECOND = 4096, 200


@dataclass(frozen=True)
class Bridge:
    """The bridge of a node's sandboxes, whose name the tables have, and its network."""

    name: str
    network: IPv4Network
    # Number of the egress proxy's user; None: it has no user of its own.
    proxy_user: int | None = None

    @property
    def gateway(self) -> str:
        """The node's address."""
        return str(self.network[1])


@dataclass(frozen=True)
class Allowed:
    """What may pass: the elements of the sets, as nft writes them."""

    # Where every sandbox reaches the API: `address . port`.
    services: frozenset[str] = frozenset()
    # Name servers of the sandboxes with open egress.
    resolvers: frozenset[str] = frozenset()
    # Addresses of sandboxes.
    sandboxes: frozenset[str] = frozenset()
    # Sandboxes that reach all public addresses.
    open: frozenset[str] = frozenset()
    # `sandbox . network`
    networks: frozenset[str] = frozenset()
    # `sandbox . address . port` of model servers, at whatever address, and of the egress proxy
    models: frozenset[str] = frozenset()

    def __or__(self, other: "Allowed") -> "Allowed":
        return Allowed(**{name: own | getattr(other, name) for name, own in self.sets()})

    def __sub__(self, other: "Allowed") -> "Allowed":
        return Allowed(**{name: own - getattr(other, name) for name, own in self.sets()})

    def __bool__(self) -> bool:
        return any(elements for _, elements in self.sets())

    def sets(self) -> Iterator[tuple[str, frozenset[str]]]:
        """The elements by the names of their sets."""
        return ((each.name, getattr(self, each.name)) for each in fields(self))

    def of(self, addresses: frozenset[str]) -> "Allowed":
        """What is allowed to the sandboxes at these addresses."""
        found = {name: elements for name, elements in self.sets() if name in OF_SANDBOXES}
        kept = {name: (each for each in elements if source(each) in addresses) for name, elements in found.items()}
        return Allowed(**{name: frozenset(elements) for name, elements in kept.items()})

    def without(self, addresses: frozenset[str]) -> "Allowed":
        """What is allowed to all but the sandboxes at these addresses."""
        return self - self.of(addresses)


@dataclass(frozen=True)
class RulesChange:
    """Elements to add and to remove."""

    add: Allowed = field(default_factory=Allowed)
    remove: Allowed = field(default_factory=Allowed)

    def __bool__(self) -> bool:
        return bool(self.add or self.remove)


def source(element: str) -> str:
    """The address of the sandbox that an element is for."""
    return element.partition(" ")[0]


def element(*parts: object) -> str:
    """An element as nft writes it: a network of one address is written as that address."""
    return " . ".join(str(part).removesuffix("/32") for part in parts)


def ruleset(bridge: Bridge, allowed: Allowed) -> str:
    """The text that replaces both tables in one transaction, whether or not they exist."""
    sets = "".join(_set(name, elements) for name, elements in allowed.sets())
    local, denied = ", ".join(map(str, LISTED_ONLY)), ", ".join(map(str, NEVER))
    proxy, jump = ("", "") if bridge.proxy_user is None else (OF_PROXY, FROM_PROXY)
    values = {"BRIDGE": bridge.name, "NETWORK": str(bridge.network), "GATEWAY": bridge.gateway}
    values |= {"MAX_FLOWS": str(MAX_FLOWS), "PER_SECOND": str(FLOWS_PER_SECOND)}
    text = TABLES.replace("  SETS\n", sets).replace("  OF_PROXY\n", proxy).replace("    FROM_PROXY\n", jump)
    for name, value in (values | {"LOCAL": local, "DENIED": denied, "USER": str(bridge.proxy_user)}).items():
        text = text.replace(name, value)
    return removal(bridge) + text


def removal(bridge: Bridge) -> str:
    """The text that removes both tables, if they exist."""
    lines = [f"add table {family} {bridge.name}\ndelete table {family} {bridge.name}\n" for family in FAMILIES]
    return "".join(lines)


def changed(bridge: Bridge, change: RulesChange) -> str:
    """The text that changes elements. An element that exists already, or is removed already, is no error."""
    lines = [_elements("add", bridge, name, elements) for name, elements in change.remove.sets() if elements]
    lines += [_elements("delete", bridge, name, elements) for name, elements in change.remove.sets() if elements]
    lines += [_elements("add", bridge, name, elements) for name, elements in change.add.sets() if elements]
    return "".join(lines)


def read_allowed(listing: list[dict[str, Any]]) -> Allowed:
    """The elements in a listing of the tables (nft's JSON)."""
    found = {item["set"]["name"]: item["set"].get("elem", []) for item in listing if "set" in item}
    return Allowed(**{name: frozenset(map(_read_element, found.get(name, []))) for name in TYPES})


def without_elements(listing: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A listing without what differs between two equal rulesets: handles, and the elements of the sets."""
    items = [(kind, found) for item in listing for kind, found in item.items() if kind != "metainfo"]
    return [{kind: {name: found[name] for name in found if not _differs(name, found)}} for kind, found in items]


def other_bridges(listing: list[dict[str, Any]], bridge: Bridge) -> set[str]:
    """The bridges of other nodes that have rules on this machine, from a listing of its tables."""
    names = {item["table"]["name"] for item in listing if "table" in item}
    return {name for name in names if name.startswith(BRIDGE_PREFIX)} - {bridge.name}


def blocked_networks(listing: list[dict[str, Any]]) -> set[IPv4Network]:
    """The networks whose packets a listed table of the family `bridge` drops."""
    rules = (item["rule"]["expr"][0] for item in listing if "rule" in item)
    found = (rule["match"] for rule in rules if "match" in rule)
    return {IPv4Network(_read_part(each["right"])) for each in found if each["left"] == SOURCE}


def _differs(name: str, found: Mapping[str, Any]) -> bool:
    return name == "handle" or (name == "elem" and found["name"] in (*TYPES, *COUNTED))


def _set(name: str, elements: frozenset[str]) -> str:
    flags = " flags interval;" if name in INTERVALS else ""
    listed = f" elements = {{ {', '.join(sorted(elements))} }}" if elements else ""
    return f"  set {name} {{ type {' . '.join(TYPES[name])};{flags}{listed} }}\n"


def _elements(verb: str, bridge: Bridge, name: str, elements: frozenset[str]) -> str:
    return f"{verb} element inet {bridge.name} {name} {{ {', '.join(sorted(elements))} }}\n"


def _read_element(found: Any) -> str:
    parts = found["concat"] if isinstance(found, dict) and "concat" in found else [found]
    return element(*map(_read_part, parts))


def _read_part(found: Any) -> str:
    if isinstance(found, dict) and "prefix" in found:
        return f"{found['prefix']['addr']}/{found['prefix']['len']}"
    return str(found)


# Each packet of a sandbox or to it is checked, not only the first of a connection: closed egress ends open
# connections, and no server can continue to send datagrams. Replies to the node's own connections pass. Model servers
# are named by the address that the sandbox sent to: the node may forward it to a container. The bridge's table matches
# `arp` and `ip`, because not every kernel can match a bridge's name there.
#
# Without the bridge, packets to sandboxes, and the sandboxes' keys in them, would take the default route. So they are
# rejected by ICMP, which `routes.is_reachable` distinguishes from a response. A TCP reset would end connections that
# could wait for the bridge. Only new connections from the gateway's address, which are the door's, are reset: after an
# ICMP error, HAProxy would try to connect in a busy loop for a second.
#
# The kernel does not count closed TCP connections, which stay in the table for two minutes, so the rate of new ones is
# limited, too. The sets have room for an element for each address of the largest network.
TABLES = """
table inet BRIDGE {
  SETS
  set local { type ipv4_addr; flags interval; elements = { LOCAL } }
  set denied { type ipv4_addr; flags interval; elements = { DENIED } }
  set flows { type ipv4_addr; size 65536; flags dynamic; }
  set starts { type ipv4_addr; size 65536; flags dynamic; timeout 1m; }
  chain refuse {
    meta l4proto tcp reject with tcp reset
    reject with icmpx admin-prohibited
  }
  chain count_flows {
    add @flows { ip saddr ct count over MAX_FLOWS } goto refuse
    update @starts { ip saddr limit rate over PER_SECOND/second burst MAX_FLOWS packets } goto refuse
  }
  chain from_sandboxes {
    ct state invalid drop
    ct direction reply ct state established accept
    meta nfproto != ipv4 goto refuse
    ip saddr NETWORK ct state new jump count_flows
    ip protocol icmp ct state related accept
    ip saddr @sandboxes ip daddr . tcp dport @services accept
    meta l4proto tcp ip saddr . ct original ip daddr . ct original proto-dst @models accept
    ip saddr @open ip daddr @resolvers meta l4proto { tcp, udp } th dport 53 accept
    ip daddr @denied goto refuse
  }
  chain to_sandboxes {
    ct state related accept
    ct direction original return
    ct state != established return
    meta l4proto tcp ip daddr . ct original ip daddr . ct original proto-dst @models accept
    ip daddr . ip saddr @networks accept
    ip daddr @open ip saddr @resolvers meta l4proto { tcp, udp } th sport 53 accept
    ip daddr @open ip saddr != @local accept
  }
  chain input {
    type filter hook input priority filter - 10; policy accept;
    iifname != { "BRIDGE", "lo" } ip daddr GATEWAY drop
    iifname != "BRIDGE" return
    jump from_sandboxes
    goto refuse
  }
  chain forward {
    type filter hook forward priority filter - 10; policy accept;
    iifname "BRIDGE" oifname "BRIDGE" drop
    oifname "BRIDGE" jump to_sandboxes
    oifname "BRIDGE" drop
    ip daddr NETWORK goto refuse
    iifname != "BRIDGE" return
    jump from_sandboxes
    ip saddr . ip daddr @networks accept
    ip saddr @open ip daddr != @local accept
    goto refuse
  }
  OF_PROXY
  chain output {
    type filter hook output priority filter - 10; policy accept;
    ip saddr GATEWAY ip daddr NETWORK oifname != { "BRIDGE", "lo" } tcp flags syn / syn,ack reject with tcp reset
    ip daddr NETWORK oifname != { "BRIDGE", "lo" } reject with icmpx admin-prohibited
    FROM_PROXY
  }
}
table bridge BRIDGE {
  chain forward {
    type filter hook forward priority filter - 10; policy accept;
    ip saddr NETWORK drop
    arp saddr ip NETWORK drop
  }
}
"""
# Whatever the proxy is made to do, it reaches only public addresses of other machines, and name servers, which may be
# private or this machine's.
OF_PROXY = """\
  chain from_proxy {
    ct direction reply accept
    meta l4proto { tcp, udp } th dport 53 accept
    fib daddr type local goto refuse
    ip daddr @denied goto refuse
    ip daddr @local goto refuse
    ip6 daddr != 2000::/3 goto refuse
  }
"""
FROM_PROXY = "    meta skuid USER jump from_proxy\n"
