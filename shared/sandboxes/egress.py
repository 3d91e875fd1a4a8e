"""What sandboxes of a spec may reach outside their node: everything public, nothing, or a list of networks."""

from dataclasses import dataclass
from ipaddress import IPv4Network, collapse_addresses

from shared.errors import Invalid
from shared.settings import NEVER

OPEN, NONE = "open", "none"
MAX_NETWORKS = 64


@dataclass(frozen=True)
class Egress:
    """The egress of a spec, as rules need it."""

    # Public addresses are reachable, and resolvers.
    is_open: bool = False
    # Reachable, private or not. They do not overlap.
    networks: tuple[IPv4Network, ...] = ()


def parse(text: str) -> Egress:
    """Read a spec's egress: `none`, `open`, IPv4 networks, or `open` and networks; comma-separated.

    Raises:
        Invalid: it is none of these.
    """
    if text == NONE:
        return Egress()
    items = [item.strip() for item in text.split(",")]
    networks = [_network(item) for item in items if item != OPEN]
    if len(networks) > MAX_NETWORKS:
        raise Invalid(f"egress has {len(networks)} networks; at most {MAX_NETWORKS} are possible")
    return Egress(OPEN in items, tuple(collapse_addresses(networks)))


def normalize(text: str) -> str:
    """The text in the form that is stored.

    Raises:
        Invalid: see `parse`.
    """
    found = parse(text.strip().lower())
    return ",".join([OPEN] * found.is_open + [*map(str, found.networks)]) or NONE


def _network(text: str) -> IPv4Network:
    try:
        network = IPv4Network(text)
    except ValueError as error:
        raise Invalid(
            f"invalid egress {text[:64]!r}: use none, or open and IPv4 networks such as 203.0.113.0/24 ({error})"
        ) from None
    if (denied := next((each for each in NEVER if network.subnet_of(each)), None)) is not None:
        raise Invalid(f"egress to {network} is not possible: {denied} is never reachable from a sandbox")
    return network
