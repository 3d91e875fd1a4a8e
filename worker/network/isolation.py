"""Isolation of a node's sandboxes: their network, and firewall rules that are derived from database and engine.

Rules are written before a sandbox is used, and compared with database, engine and firewall at each resync. While they
are missing, or can't be written, the node is closed to new sandboxes, and starts no container (decision 53).
"""

import threading
from dataclasses import dataclass
from typing import Protocol

import structlog

from shared.crypto import Vault
from shared.db.database import Database
from shared.errors import Invalid
from shared.models import Sandbox
from shared.sandboxes import network_access
from shared.settings import Settings
from worker.engine.docker_engine import INSTALLATION_LABEL, SANDBOX_LABEL
from worker.engine.protocol import (
    ContainerStatus,
    Engine,
    EngineError,
    EngineRefused,
    NetworkPlace,
    NetworkRequest,
)
from worker.network import addresses
from worker.network.access import AccessReader
from worker.network.firewall import Firewall, FirewallError
from worker.network.routes import find_conflict
from worker.network.rules import Allowed, Change, Place

log = structlog.get_logger()


@dataclass(frozen=True)
class Parts:
    """What the isolation of a node reads and changes."""

    shared: Settings
    node: str
    # AW_SANDBOX_DNS.
    resolvers: str
    door_port: int
    installation: str
    database: Database
    vault: Vault
    engine: Engine
    firewall: Firewall
    place: Place

    @property
    def network(self) -> NetworkRequest:
        """The engine's network."""
        return network_request(self.place, self.installation)


def network_request(place: Place, installation: str) -> NetworkRequest:
    """The network of an installation's containers at that place."""
    return NetworkRequest(
        name=addresses.network_name(place),
        bridge=place.bridge,
        subnet=str(place.network),
        gateway=place.gateway,
        labels={INSTALLATION_LABEL: installation},
    )


class Isolation(Protocol):
    """The network of a node's sandboxes, as the rest of the worker uses it."""

    @property
    def place(self) -> NetworkPlace | None:
        """Where new containers are; None: on the engine's own bridge."""

    def check(self) -> str | None:
        """Return why the node takes no new sandboxes; None if it takes them."""

    def require_rules(self) -> None:
        """Check that a container may start.

        Raises:
            FirewallError: its rules would be missing.
        """

    def admit(self, sandbox: Sandbox, observed: ContainerStatus) -> None:
        """Allow a running sandbox what its spec and its owner's settings say.

        Raises:
            FirewallError: the rules can't be written.
        """

    def renew(self, sandbox: Sandbox) -> None:
        """Do the same for a sandbox that was admitted before: its owner's settings may have changed just now.

        Raises:
            FirewallError: the rules can't be written.
        """

    def withdraw(self, sandbox: Sandbox, observed: ContainerStatus) -> None:
        """Allow nothing more to the address of a container that was stopped or removed.

        Raises:
            FirewallError: the rules can't be written.
        """

    def refresh(self) -> None:
        """Compare network and rules with database and engine, and correct them."""


class NoIsolation:
    """AW_NETWORK_ISOLATION=off: containers are on the engine's own bridge, without rules."""

    place: NetworkPlace | None = None

    def check(self) -> str | None:
        """Nothing is missing."""
        return None

    def require_rules(self) -> None:
        """Nothing is required."""

    def admit(self, sandbox: Sandbox, observed: ContainerStatus) -> None:
        """Everything is allowed."""

    def renew(self, sandbox: Sandbox) -> None:
        """Everything is allowed."""

    def withdraw(self, sandbox: Sandbox, observed: ContainerStatus) -> None:
        """Nothing is withdrawn."""

    def refresh(self) -> None:
        """Nothing is compared."""


class NetworkIsolation:
    """The network and the rules of one node."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._access = AccessReader(parts.shared, parts.vault)
        self._problem: str | None = "the network rules are not written yet"
        # Whether a heartbeat has read the problem: a node whose rules were missing is closed for one at least.
        self._reported = True
        # The rules were there at the last resync, or were written by it.
        self._intact = False
        # This process has written the rules before: if they are missing, something else removed them.
        self._written = False
        # The rules as last read, with this process's changes since. Only a shortcut: each resync reads them again.
        self._known = Allowed()
        # Addresses that were changed while a resync was deriving the rules: it leaves them to the next one.
        self._touched: set[str] = set()
        # By sandbox.
        self._addresses: dict[str, str] = {}
        self._lock = threading.Lock()

    @property
    def place(self) -> NetworkPlace:
        """The network of new containers."""
        shared = self._parts.shared
        found = addresses.resolvers(self._parts.resolvers)
        return NetworkPlace(self._parts.network.name, shared.sandbox_gateway, found)

    def check(self) -> str | None:
        """Return the problem, and remember that it was reported."""
        self._reported = True
        return self._problem

    def require_rules(self) -> None:
        """Check that the rules were there at the last resync, or are written since."""
        if not self._intact:
            raise FirewallError(self._problem or "the network rules are missing")

    def admit(self, sandbox: Sandbox, observed: ContainerStatus) -> None:
        """Write the elements of one sandbox, unless they are known to be there."""
        if address := observed.networks.get(self._parts.network.name):
            is_new = self._addresses.get(sandbox.id) != address
            self._addresses[sandbox.id] = address
            self._allow(sandbox, address, is_new=is_new)

    def renew(self, sandbox: Sandbox) -> None:
        """Write the elements of the sandbox's last known address."""
        if (address := self._addresses.get(sandbox.id)) is not None:
            self._allow(sandbox, address, is_new=False)

    def _allow(self, sandbox: Sandbox, address: str, *, is_new: bool) -> None:
        allowed = self._access_of(sandbox, address)
        with self._lock:
            known = self._known.of(frozenset({address}))
            if is_new:  # another worker may have left the address open
                self._apply(Change(allowed, (known | Allowed(open=frozenset({address}))) - allowed), address)
            else:
                self._apply(Change(allowed - known, known - allowed), address)

    def withdraw(self, sandbox: Sandbox, observed: ContainerStatus) -> None:
        """Remove the elements of one address: those that are known, and those that another worker may have written."""
        if not (address := observed.networks.get(self._parts.network.name)):
            return
        allowed = self._access_of(sandbox, address)
        with self._lock:
            self._addresses.pop(sandbox.id, None)
            self._apply(Change(remove=allowed | self._known.of(frozenset({address}))), address)

    def _access_of(self, sandbox: Sandbox, address: str) -> Allowed:
        with self._parts.database.reading() as session:
            row = network_access.of_sandbox(session, sandbox.id)
            return self._access.read(session, {address: row} if row else {})

    def refresh(self) -> None:
        """Compare and correct; what is wrong closes the node. If the engine is away, the node is lost anyway."""
        try:
            if not self._intact:
                self._require_free_network()
            self._parts.engine.ensure_network(self._parts.network)
            self._compare()
        except (FirewallError, EngineRefused, Invalid, OSError) as error:
            self._close(str(error))
        except EngineError as error:
            log.warning("engine_unavailable", node=self._parts.node, error=str(error))
        else:
            self._open()

    def _require_free_network(self) -> None:
        place = self._parts.place
        if (conflict := find_conflict(place)) is not None:
            raise Invalid(
                f"AW_SANDBOX_ADDRESSES is {place.network}, and this machine has a route to {conflict}: set another one"
            )

    def _compare(self) -> None:
        # The firewall is read first: what jobs add meanwhile is then neither known nor removed.
        with self._lock:
            self._touched.clear()
        found = self._parts.firewall.read()
        if found is None and self._written:
            self._close("the network rules were missing or changed; they are written again")
        wanted = self._derive()
        with self._lock:
            if found is None:
                self._parts.firewall.write(wanted)
                self._known = wanted
                log.info("network_rules_written", bridge=self._parts.place.bridge, sandboxes=len(wanted.sandboxes))
            else:
                touched = frozenset(self._touched)
                change = Change(_without(wanted - found, touched), _without(found - wanted, touched))
                self._correct(found, change)
                self._known = _without((found - change.remove) | change.add, touched) | self._known.of(touched)
            self._written = self._intact = True

    def _correct(self, found: Allowed, change: Change) -> None:
        try:
            self._parts.firewall.change(change)
        except FirewallError as error:
            log.warning("network_rules_replaced", error=str(error))
            self._parts.firewall.write((found - change.remove) | change.add)

    def _derive(self) -> Allowed:
        parts, name = self._parts, self._parts.network.name
        listed = parts.engine.list_containers(parts.installation)
        at = {item.networks.get(name, ""): item.labels.get(SANDBOX_LABEL, "") for item in listed}
        with parts.database.reading() as session:
            rows = {row.id: row for row in network_access.on_node(session, parts.node)}
            running = {address: rows[sandbox] for address, sandbox in at.items() if address and sandbox in rows}
            now = {row.id: address for address, row in running.items() if address not in self._touched}
            self._addresses = {
                sandbox: address for sandbox, address in self._addresses.items() if sandbox in rows
            } | now
            allowed = self._access.read(session, running)
        resolvers = frozenset(addresses.resolvers(parts.resolvers))
        services = frozenset({addresses.service_address(parts.shared, parts.door_port)})
        return allowed | Allowed(services=services, resolvers=resolvers)

    def _apply(self, change: Change, address: str) -> None:
        self._parts.firewall.change(change)
        self._known = (self._known - change.remove) | change.add
        self._touched.add(address)

    def _close(self, problem: str) -> None:
        if problem != self._problem:
            log.error("network_rules_missing", problem=problem)
            self._reported = False
        self._problem, self._intact = problem, False

    def _open(self) -> None:
        if self._problem is not None and self._reported:
            log.info("network_isolated", bridge=self._parts.place.bridge)
            self._problem = None


def _without(allowed: Allowed, sandboxes: frozenset[str]) -> Allowed:
    return allowed - allowed.of(sandboxes)
