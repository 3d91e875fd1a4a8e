"""The egress of a spec: all public addresses, nothing, or listed networks and host names."""

import re
from dataclasses import dataclass
from ipaddress import IPv4Network, collapse_addresses

from shared.addresses import NEVER
from shared.errors import Invalid

OPEN, NONE = "open", "none"
MAX_NETWORKS = MAX_NAMES = 64
MAX_NAME = 253
LABEL = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
# A name has a dot, and no number as its last label: that would be an address.
NAME = re.compile(rf"(\*\.)?({LABEL}\.)+(?![0-9]+(:|$)){LABEL}(:[1-9][0-9]{{0,4}})?")
HINT = "use none, or open, or IPv4 networks such as 203.0.113.0/24 and host names such as pypi.org or *.pypi.org:443"


@dataclass(frozen=True)
class Egress:
    """The egress of a spec, in the form that the network rules and the egress proxy need."""

    # Whether public addresses and resolvers are reachable.
    is_open: bool = False
    # Networks that are reachable, private or not. They do not overlap.
    networks: tuple[IPv4Network, ...] = ()
    # Hosts that are reachable through the node's proxy: `name`, or `*.name` for all names below it, with or without
    # `:port`.
    names: tuple[str, ...] = ()


def parse(text: str) -> Egress:
    """Read a spec's egress: `none`, `open`, IPv4 networks and host names; comma-separated.

    Raises:
        Invalid: it is none of these.
    """
    if text == NONE:
        return Egress()
    items = [item.strip() for item in text.split(",")]
    names = tuple(dict.fromkeys(_name(item) for item in items if item != OPEN and _is_named(item)))
    networks = [_network(item) for item in items if item != OPEN and not _is_named(item)]
    if len(networks) > MAX_NETWORKS or len(names) > MAX_NAMES:
        raise Invalid(
            f"egress has {len(networks)} networks and {len(names)} names; at most {MAX_NETWORKS} of each are possible"
        )
    if OPEN in items and names:
        raise Invalid(f"egress has open beside {names[0]!r}: open reaches all public addresses; leave one out")
    return Egress(OPEN in items, tuple(collapse_addresses(networks)), names)


def normalize(text: str) -> str:
    """The text in the form that is stored.

    Raises:
        Invalid: see `parse`.
    """
    found = parse(text.strip().lower())
    return ",".join([OPEN] * found.is_open + [*map(str, found.networks), *found.names]) or NONE


def _is_named(text: str) -> bool:
    """Whether an item is meant as a name: it has a letter or an asterisk, and is no IPv6 address."""
    return "." in text and any(each.isalpha() or each == "*" for each in text)


def _name(text: str) -> str:
    if len(text) > MAX_NAME or NAME.fullmatch(text) is None:
        raise Invalid(f"invalid egress {text[:64]!r}: {_reason(text)}; {HINT}")
    if int(text.partition(":")[2] or 0) > 65535:
        raise Invalid(f"invalid egress {text[:64]!r}: a port is at most 65535")
    return text


def _reason(text: str) -> str:
    if "/" in text:
        return "a name has neither a scheme nor a path"
    if not text.isascii():
        return "write an international name in its ASCII form, xn--…"
    if "*" in text.removeprefix("*."):
        return "an asterisk stands for the first labels only"
    if text.startswith("*.") and text.count(".") < 2:
        return "this would be a whole top-level domain"
    return "it is no host name"


def _network(text: str) -> IPv4Network:
    try:
        network = IPv4Network(text)
    except ValueError as error:
        raise Invalid(f"invalid egress {text[:64]!r}: {HINT} ({error})") from None
    if (denied := next((each for each in NEVER if network.subnet_of(each)), None)) is not None:
        raise Invalid(f"egress to {network} is not possible: {denied} is never reachable from a sandbox")
    return network
