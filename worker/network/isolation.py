"""Isolation of a node's sandboxes: their network, and firewall rules that are derived from database and engine.

Rules are written before a sandbox is used, and compared with database, engine and firewall at each resync. While they
are missing, or can't be written, the node is closed to new sandboxes, and starts no container (decision 53).
"""

import threading
from dataclasses import dataclass

import structlog

from shared.crypto import Vault
from shared.db.database import Database
from shared.errors import Invalid
from shared.models import Sandbox
from shared.sandboxes import egress, network_access
from shared.settings import Settings
from worker.engine.docker_engine import INSTALLATION_LABEL
from worker.engine.protocol import ContainerStatus, Engine, EngineError, EngineRefused, NetworkEndpoint, NetworkRequest
from worker.network import addresses
from worker.network.access import Access, AccessReader
from worker.network.firewall import Firewall, FirewallError
from worker.network.located import SandboxAddress, SandboxAddresses, by_sandbox, find_next, locate
from worker.network.protocol import Isolation
from worker.network.proxy import PROXY_LABEL, EgressProxy
from worker.network.routes import find_conflict, find_route_problem, is_reachable
from worker.network.rules import Allowed, Bridge, RulesChange

log = structlog.get_logger()


@dataclass(frozen=True)
class IsolationContext:
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
    bridge: Bridge
    proxy: EgressProxy

    @property
    def network(self) -> NetworkRequest:
        return network_request(self.bridge, self.installation)


def network_request(bridge: Bridge, installation: str) -> NetworkRequest:
    """The network of an installation's containers on that bridge."""
    return NetworkRequest(
        name=addresses.network_name(bridge),
        bridge=bridge.name,
        subnet=str(bridge.network),
        gateway=bridge.gateway,
        labels={INSTALLATION_LABEL: installation},
    )


class NetworkIsolation(Isolation):
    """The network and the rules of one node."""

    def __init__(self, context: IsolationContext) -> None:
        self._context = context
        self._access = AccessReader(context.shared, context.vault, context.proxy.endpoint)
        self._problem: str | None = "the network rules are not written yet"
        # Whether a heartbeat has read the problem: a node whose rules were missing is closed for at least one.
        self._reported = True
        # The rules were intact at the last resync, or were written by it.
        self._intact = False
        # This process has written the rules before: if they are missing, something else removed them.
        self._written = False
        # A cache of the rules as last read, with this process's changes since. Missing rules are written back from it.
        self._known = Allowed()
        # Addresses that were changed while a resync was deriving the rules: that resync leaves them to the next one.
        self._touched: set[str] = set()
        # By sandbox; written under the lock.
        self._located: dict[str, SandboxAddress] = {}
        # Sandboxes whose rules were not written since their address became known.
        self._new: set[str] = set()
        self._lock = threading.Lock()

    @property
    def endpoint(self) -> NetworkEndpoint:
        shared = self._context.shared
        found = addresses.resolvers(self._context.resolvers)
        servers = sorted({each.partition(":")[0] for each in self._access.model_servers})
        direct = ("localhost", "127.0.0.1", "host.docker.internal", shared.sandbox_gateway, *servers)
        name, proxy = self._context.network.name, self._context.proxy
        return NetworkEndpoint(name, shared.sandbox_gateway, found, proxy.url, tuple(dict.fromkeys(direct)))

    @property
    def impairment(self) -> str | None:
        return self._context.proxy.problem

    def find_route_problem(self) -> str | None:
        return find_route_problem(self._context.bridge)

    def reaches(self, address: str) -> bool:
        return is_reachable(address)

    def check(self) -> str | None:
        """Return the problem, and remember that it was reported."""
        self._reported = True
        return self._problem

    def require_rules(self, sandbox: Sandbox) -> None:
        """Check that the rules are intact, as of the last resync, and that the proxy listens if it is needed.

        Forget the address that the sandbox had: it is about to get one, perhaps the same, and another worker may have
        revoked the rules of that.
        """
        if not self._intact:
            raise FirewallError(self._problem or "the network rules are missing")
        if (problem := self._context.proxy.problem) is not None and self._has_names(sandbox):
            raise FirewallError(problem)
        with self._lock:
            if (former := self._located.pop(sandbox.id, None)) is not None:
                self._touched.add(former.address)  # else a resync with an older list would restore it

    def admit(self, sandbox: Sandbox, observed: ContainerStatus) -> None:
        """Write the elements of one sandbox, unless they are known to exist."""
        if address := observed.networks.get(self._context.network.name):
            found = SandboxAddress(address, PROXY_LABEL in observed.labels)
            self._locate(sandbox.id, found)
            self._allow(sandbox, found)

    def _locate(self, sandbox_id: str, found: SandboxAddress) -> None:
        """Record where a sandbox is; a resync with an older list does not overwrite it."""
        with self._lock:
            if self._located.get(sandbox_id) == found:
                return
            for former in self._others_at(found.address, sandbox_id):
                del self._located[former]
            self._located[sandbox_id] = found
            self._new.add(sandbox_id)
            self._touched.add(found.address)

    def renew(self, sandbox: Sandbox) -> None:
        """Write the elements of the sandbox's last known address."""
        if (found := self._located.get(sandbox.id)) is not None:
            self._allow(sandbox, found)

    def _allow(self, sandbox: Sandbox, located: SandboxAddress) -> None:
        access, address = self._access_of(sandbox.id, located), located.address
        allowed = access.allowed
        with self._lock:
            if self._located.get(sandbox.id) != located:
                return  # the address was revoked since, and another sandbox may have it
            self._context.proxy.allow(address, access.proxied.get(address, ()))
            known = self._known.of(frozenset({address}))
            if sandbox.id in self._new:  # another worker may have left the address open
                self._apply(RulesChange(allowed, (known | Allowed(open=frozenset({address}))) - allowed), address)
            else:
                self._apply(RulesChange(allowed - known, known - allowed), address)
            self._new.discard(sandbox.id)

    def revoke(self, sandbox: Sandbox, observed: ContainerStatus, *, has_ended: bool = False) -> None:
        """Remove the elements of one address: those that are known, and those that another worker may have written."""
        known, context = self._located.get(sandbox.id), self._context
        address = observed.networks.get(context.network.name) or (known.address if known else "")
        # A container that has ended has no address any more. Another worker's may have it, and keeps its own access.
        is_free = has_ended or address not in observed.networks.values()
        successor = find_next(context.engine, context.network, address, sandbox.id) if is_free else None
        own = self._access_of(sandbox.id, SandboxAddress(address, uses_proxy=True)) if address else Access()
        kept = self._access_of(*successor) if successor else Access()
        with self._lock:
            if address and not self._others_at(address, sandbox.id):
                context.proxy.allow(address, kept.proxied.get(address, ()))
                allowed = own.allowed | self._known.of(frozenset({address}))
                self._apply(RulesChange(remove=allowed - kept.allowed), address)
            self._located.pop(sandbox.id, None)  # last: until then, the next attempt needs it

    def _others_at(self, address: str, sandbox_id: str) -> list[str]:
        """The other sandboxes at an address. The caller has the lock."""
        return [other for other, each in self._located.items() if each.address == address and other != sandbox_id]

    def _has_names(self, sandbox: Sandbox) -> bool:
        found = network_access.read_one(self._context.database, sandbox.id)
        return found is not None and bool(egress.parse(found.row.egress).names)

    def _access_of(self, sandbox_id: str, located: SandboxAddress) -> Access:
        address, uses_proxy = located
        return self._access.read_one(self._context.database, sandbox_id, address, uses_proxy=uses_proxy)

    def refresh(self) -> bool:
        """Compare and correct network and rules. A problem closes the node; without an engine it is lost anyway."""
        before = self._problem
        try:
            found = self._read_rules()
            if not self._intact:
                self._require_free_network()
            self._context.engine.ensure_network(self._context.network)
            self._compare(found)
            if (problem := self.find_route_problem()) is not None:
                raise Invalid(problem)
        except (FirewallError, EngineRefused, Invalid, OSError) as error:
            self._close(str(error))
        except EngineError as error:
            log.warning("engine_unavailable", node=self._context.node, error=str(error))
        else:
            self._open()
        return self._problem != before

    def _require_free_network(self) -> None:
        if (conflict := find_conflict(self._context.bridge)) is not None:
            setting = f"AW_SANDBOX_ADDRESSES is {self._context.bridge.network}"
            raise Invalid(f"{setting}, and this machine has a route to {conflict}: set another one")

    def _read_rules(self) -> Allowed | None:
        """Read the rules. Missing ones are written back at once: the database and the engine may be away for long."""
        # The firewall is read first, so that elements that jobs add concurrently are neither seen nor removed.
        with self._lock:
            self._touched.clear()
        found = self._context.firewall.read()
        if found is not None or not self._written:
            return found
        self._close("the network rules were missing or changed; they are written again")
        with self._lock:
            self._write(self._known)
            return self._known

    def _compare(self, found: Allowed | None) -> None:
        listed, access = self._context.proxy.list_addresses(), self._derive()
        wanted = access.allowed
        with self._lock:
            self._context.proxy.compare(listed, access.proxied, self._touched)
            if found is None:
                self._write(wanted)
            else:
                touched = frozenset(self._touched)
                change = RulesChange((wanted - found).without(touched), (found - wanted).without(touched))
                self._correct(found, change)
                self._known = ((found - change.remove) | change.add).without(touched) | self._known.of(touched)
            self._written = self._intact = True

    def _write(self, allowed: Allowed) -> None:
        self._context.firewall.write(allowed)
        self._known = allowed
        log.info("network_rules_written", bridge=self._context.bridge.name, sandboxes=len(allowed.sandboxes))

    def _correct(self, found: Allowed, change: RulesChange) -> None:
        try:
            self._context.firewall.change(change)
        except FirewallError as error:
            log.warning("network_rules_replaced", error=str(error))
            self._context.firewall.write((found - change.remove) | change.add)

    def _derive(self) -> Access:
        context = self._context
        listed = by_sandbox(context.engine.list_containers(context.installation))
        with context.database.reading() as session:
            rows = {each.row.id: each for each in network_access.on_node(session, context.node)}
        runs = {sandbox_id: each.runs for sandbox_id, each in rows.items()}
        locations = locate(context.engine, context.network.name, listed, runs)
        running = {each.address: rows[sandbox_id].row for sandbox_id, each in locations.known.items()}
        of_proxy = {each.address for each in locations.known.values() if each.uses_proxy}
        with context.database.reading() as session:
            access = self._access.read(session, running, of_proxy)
        self._relocate(locations)
        resolvers = frozenset(addresses.resolvers(context.resolvers))
        services = frozenset({addresses.service_address(context.shared, context.door_port)})
        return Access(access.allowed | Allowed(services=services, resolvers=resolvers), access.proxied)

    def _relocate(self, found: SandboxAddresses) -> None:
        """Replace the known addresses of sandboxes by those found, except addresses that were changed since.

        The rules of sandboxes whose address is unknown now stay as they are.
        """
        with self._lock:
            before = {self._located[sandbox].address for sandbox in found.unknown if sandbox in self._located}
            self._touched |= before | set(filter(None, found.unknown.values()))
            now = {sandbox: each for sandbox, each in found.known.items() if each.address not in self._touched}
            kept = {sandbox: each for sandbox, each in self._located.items() if each.address in self._touched}
            self._located = kept | now
            self._new &= self._located.keys()

    def _apply(self, change: RulesChange, address: str) -> None:
        self._context.firewall.change(change)
        self._known = (self._known - change.remove) | change.add
        self._touched.add(address)

    def _close(self, problem: str) -> None:
        if problem != self._problem:
            log.error("network_rules_missing", problem=problem)
            self._reported = False
        self._problem, self._intact = problem, False

    def _open(self) -> None:
        if self._problem is not None and self._reported:
            log.info("network_isolated", bridge=self._context.bridge.name)
            self._problem = None
