"""The firewall of this machine: rules are written by `nft`, read back, and compared with what was written."""

import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Collection, Iterator, Sequence
from http.client import HTTPConnection, HTTPException
from typing import Any, Protocol

from shared.observability import failpoints
from worker.engine.protocol import EngineUnavailable
from worker.network.rules import (
    FAMILIES,
    TYPES,
    Allowed,
    Bridge,
    RulesChange,
    blocked_networks,
    changed,
    other_bridges,
    read_allowed,
    removal,
    ruleset,
    without_elements,
)

# Administrators' programs are not on every user's PATH.
PATHS = "/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin"
SECONDS = 10
# The route of the engine filter (deploy/engine_filter/network.py).
ROUTE = "/agent-workspace/network"
UNIX = "unix://"
# Max elements in one filter of ss, which may have 64 KB.
MAX_FILTERED = 200
OTHER_RULES = (
    "AW_SANDBOX_ADDRESSES is {network}, and firewall rules of another installation or node drop packets of these "
    "addresses: set other ones, or, if it no longer exists, run `nft delete table inet {bridge}` and "
    "`nft delete table bridge {bridge}`"
)


class FirewallError(EngineUnavailable):
    """The rules can't be written or read now; the message says why."""


class Firewall(Protocol):
    """The tables of one node's sandboxes. All methods raise FirewallError."""

    def read(self) -> Allowed | None:
        """What the rules allow; None if they are missing, or are not those that `write` has written."""

    def write(self, allowed: Allowed) -> None:
        """Replace all rules in one transaction."""

    def change(self, change: RulesChange) -> None:
        """Add and remove elements in one transaction. Safe to repeat."""

    def disconnect(self, models: Collection[str]) -> None:
        """Close the connections to servers of this machine that these elements of `models` have allowed."""

    def remove(self) -> None:
        """Remove all rules."""


class LocalFirewall:
    """The firewall of this network namespace, for a process that runs as root."""

    def __init__(self, bridge: Bridge, prefix: Sequence[str] = ()) -> None:
        """Use the tables of this bridge; `prefix` is a command that runs `nft` in another network namespace."""
        self._bridge = bridge
        self._prefix = prefix
        # The listing right after the last `write`, without the elements: what intact rules look like.
        self._written: list[dict[str, Any]] | None = None
        self._lock = threading.Lock()

    def read(self) -> Allowed | None:
        with self._lock:
            listing = self._list()
            intact = listing is not None and without_elements(listing) == self._written
            return read_allowed(listing) if listing is not None and intact else None

    def write(self, allowed: Allowed) -> None:
        """Replace both tables, and read them back, unless another node's rules drop the packets of this network."""
        with self._lock:
            self._require_no_other_rules()
            with failpoints.around("firewall.write"):
                self._run("-f", "-", text=ruleset(self._bridge, allowed))
            listing = self._list()
            if listing is None or read_allowed(listing) != allowed:
                raise FirewallError("the firewall's rules differ from those just written: another program changes them")
            self._written = without_elements(listing)

    def change(self, change: RulesChange) -> None:
        if change:
            with self._lock, failpoints.around("firewall.change"):
                self._run("-f", "-", text=changed(self._bridge, change))

    def disconnect(self, models: Collection[str]) -> None:
        """Have the kernel close the connections, at both ends."""
        for some in _parts(sorted(models)):
            with failpoints.around("firewall.disconnect"):
                self._run_program("ss", "iproute2", "-Ktn", " or ".join(map(_sockets, some)))

    def remove(self) -> None:
        with self._lock, failpoints.around("firewall.remove"):
            self._run("-f", "-", text=removal(self._bridge))

    def _require_no_other_rules(self) -> None:
        """Rules outlive an installation that was not removed by its own commands."""
        listing = json.loads(self._run("-j", "list", "tables") or "")["nftables"]
        for bridge in sorted(other_bridges(listing, self._bridge)):
            table = self._run("-j", "list", "table", "bridge", bridge, missing=True)
            blocked = blocked_networks(json.loads(table)["nftables"]) if table is not None else ()
            if any(network.overlaps(self._bridge.network) for network in blocked):
                raise FirewallError(OTHER_RULES.format(network=self._bridge.network, bridge=bridge))

    def _list(self) -> list[dict[str, Any]] | None:
        found: list[dict[str, Any]] = []
        for family in FAMILIES:
            output = self._run("-j", "list", "table", family, self._bridge.name, missing=True)
            if output is None:
                return None
            found += json.loads(output)["nftables"]
        return found

    def _run(self, *arguments: str, text: str | None = None, missing: bool = False) -> str | None:
        return self._run_program("nft", "nftables", *arguments, text=text, missing=missing)

    def _run_program(
        self, name: str, package: str, *arguments: str, text: str | None = None, missing: bool = False
    ) -> str | None:
        program = shutil.which(name, path=PATHS)
        if program is None:
            raise FirewallError(f"{name} is missing: install the package {package}")
        command = [*self._prefix, program, *arguments]
        try:
            done = subprocess.run(  # noqa: S603 - the arguments are addresses and names that this service has made
                command, input=text, capture_output=True, text=True, check=False, timeout=SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise FirewallError(f"{name} did not run: {type(error).__name__}") from None
        if done.returncode == 0:
            return done.stdout
        if missing and "No such file or directory" in done.stderr:
            return None
        raise FirewallError(f"{name} failed: {' '.join(done.stderr.split())[:300]}")


class FilteredFirewall:
    """The firewall through the engine filter, which runs as root: this process has no rights to change it."""

    def __init__(self, docker_host: str) -> None:
        """Use the filter's socket, which this worker also uses as its engine's socket."""
        self._path = docker_host.removeprefix(UNIX) if docker_host.startswith(UNIX) else None

    def read(self) -> Allowed | None:
        found = self._request("GET")
        return None if found.get("allowed") is None else read_document(found["allowed"])

    def write(self, allowed: Allowed) -> None:
        with failpoints.around("firewall.write"):
            self._request("PUT", {"allowed": document(allowed)})

    def change(self, change: RulesChange) -> None:
        if change:
            with failpoints.around("firewall.change"):
                self._request("PUT", {"add": document(change.add), "remove": document(change.remove)})

    def disconnect(self, models: Collection[str]) -> None:
        if models:
            with failpoints.around("firewall.disconnect"):
                self._request("PUT", {"disconnect": document(Allowed(models=frozenset(models)))})

    def remove(self) -> None:
        with failpoints.around("firewall.remove"):
            self._request("DELETE")

    def _request(self, method: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        if self._path is None:
            raise FirewallError("only root, or an engine filter on a unix socket, can write firewall rules")
        connection = HTTPConnection("engine", timeout=2 * SECONDS)
        try:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(2 * SECONDS)
            connection.sock.connect(self._path)
            connection.request(method, ROUTE, json.dumps(body or {}), {"Content-Type": "application/json"})
            response = connection.getresponse()
            text, status = response.read(), response.status
        except (OSError, HTTPException) as error:
            raise FirewallError(f"the engine filter does not respond: {type(error).__name__}") from None
        finally:
            connection.close()
        return _read_response(status, text)


def _parts(models: Sequence[str]) -> Iterator[Sequence[str]]:
    return (models[first : first + MAX_FILTERED] for first in range(0, len(models), MAX_FILTERED))


def _sockets(element: str) -> str:
    """The sockets of a server of this machine that are connected with a sandbox, as a filter of ss."""
    sandbox, address, port = element.split(" . ")
    return f"( src {address}:{port} and dst {sandbox} )"


def document(allowed: Allowed) -> dict[str, list[str]]:
    """The allowed elements as JSON."""
    return {name: sorted(elements) for name, elements in allowed.sets() if elements}


def read_document(found: dict[str, list[str]]) -> Allowed:
    """The allowed elements from JSON. Sets that are not named are empty."""
    return Allowed(**{name: frozenset(found.get(name, ())) for name in TYPES})


def _read_response(status: int, text: bytes) -> dict[str, Any]:
    if status == 404:
        raise FirewallError(
            "this worker is not root, and AW_DOCKER_HOST is no engine filter: start the service as root, or set "
            "AW_NETWORK_ISOLATION=off"
        )
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError:
        raise FirewallError(f"the engine filter responds with status {status}") from None
    if status != 200:
        # A filter of an earlier version does not know the route.
        advice = "; restart the engine filter if it is older than this worker" if status == 403 else ""
        raise FirewallError(f"{str(found.get('message'))[:400]}{advice}")
    return found
