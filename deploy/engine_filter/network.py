"""The route by which a worker without root's rights changes the rules of its sandboxes' network.

Worker and filter agree on the form of elements only: the filter knows the tables and their other content from its own
settings.
"""

import json
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from deploy.engine_filter.bodies import RequestRefused
from worker.network.firewall import Firewall, document, read_document
from worker.network.rules import OF_SANDBOXES, TYPES, Allowed, Bridge, RulesChange

PARTS = " . "
# The possible fields of the body of a PUT.
KEYS = ({"allowed"}, {"add", "remove"}, {"disconnect"})


class NetworkRoute:
    """The requests about the rules at one bridge."""

    def __init__(self, bridge: Bridge, firewall: Firewall) -> None:
        self._bridge = bridge
        self._firewall = firewall

    def serve(self, method: str, text: bytes) -> dict[str, Any]:
        """The response to a request.

        Raises:
            RequestRefused: workers do not make this request.
            FirewallError: the rules can't be written or read.
        """
        if method == "GET":
            allowed = self._firewall.read()
            return {"allowed": None if allowed is None else document(allowed)}
        if method == "PUT":
            self._put(self._read(text))
        elif method == "DELETE":
            self._firewall.remove()
        else:
            raise RequestRefused("the network rules are read by GET, and changed by PUT and DELETE")
        return {}

    def _put(self, found: dict[str, Allowed]) -> None:
        if "allowed" in found:
            self._firewall.write(found["allowed"])
        elif "disconnect" in found:
            self._firewall.disconnect(found["disconnect"].models)
        else:
            self._firewall.change(RulesChange(found["add"], found["remove"]))

    def _read(self, text: bytes) -> dict[str, Allowed]:
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            raise RequestRefused("the body is not JSON") from None
        if not isinstance(body, dict) or set(body) not in KEYS:
            raise RequestRefused("the body has neither allowed, nor add and remove, nor disconnect")
        return {key: self._read_sets(value) for key, value in body.items()}

    def _read_sets(self, found: Any) -> Allowed:
        if not isinstance(found, dict) or not found.keys() <= TYPES.keys():
            raise RequestRefused("the rules have a set that is not known")
        for name, elements in found.items():
            if not isinstance(elements, list) or not all(self._is_element(name, each) for each in elements):
                raise RequestRefused(f"an element of {name} is not one of this network")
        return read_document(found)

    def _is_element(self, name: str, found: Any) -> bool:
        if not isinstance(found, str) or len(found) > 64:
            return False
        parts = found.split(PARTS)
        of_sandbox = name in OF_SANDBOXES
        if of_sandbox and not _is_in(parts[0], self._bridge.network):
            return False
        checks = ELEMENTS[name]
        return len(parts) == len(checks) and all(check(part) for check, part in zip(checks, parts, strict=True))


def _is_in(text: str, network: IPv4Network) -> bool:
    return _is_address(text) and IPv4Address(text) in network


def _is_address(text: str) -> bool:
    return _parses(IPv4Address, text)


def _is_network(text: str) -> bool:
    return _parses(IPv4Network, text)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and 1 <= int(text[:6]) <= 65535


def _parses(kind: Callable[[str], object], text: str) -> bool:
    try:
        return text.isascii() and str(kind(text)).removesuffix("/32") == text
    except ValueError:
        return False


ELEMENTS: dict[str, tuple[Callable[[str], bool], ...]] = {
    "services": (_is_address, _is_port),
    "resolvers": (_is_address,),
    "sandboxes": (_is_address,),
    "open": (_is_address,),
    "networks": (_is_address, _is_network),
    "models": (_is_address, _is_address, _is_port),
}
