"""The allowed destinations of sandboxes, from their specs, their owners' settings, and the allowed model servers."""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import structlog

from shared.addresses import split_list
from shared.crypto import Vault
from shared.db.database import Database, Session
from shared.nodes import model_servers
from shared.sandboxes import egress, network_access
from shared.sandboxes.network_access import NetworkRow
from shared.settings import Settings
from worker.network.proxy import Targets, targets
from worker.network.rules import Allowed, element

log = structlog.get_logger()

MAX_CACHED = 10_000


@dataclass(frozen=True)
class Access:
    """What sandboxes may reach: by rules, and by the egress proxy."""

    allowed: Allowed = field(default_factory=Allowed)
    # By the address of a sandbox.
    proxied: Mapping[str, Targets] = field(default_factory=dict)


class AccessReader:
    """Reads what sandboxes may reach. The URLs in a user's settings are decrypted again only after a change."""

    def __init__(self, shared: Settings, vault: Vault, proxy: tuple[str, int]) -> None:
        self._node_address = shared.sandbox_gateway
        self._proxy = proxy
        self._listed = frozenset(split_list(shared.model_servers))
        self._vault = vault
        # By owner: the version of the settings, and the servers that they name.
        self._named: dict[str, tuple[str, frozenset[str]]] = {}
        # The model servers that sandboxes may reach, as of the last `read`.
        self.model_servers = self._listed

    def read(self, session: Session, rows: Mapping[str, NetworkRow], users_of_proxy: Collection[str] = ()) -> Access:
        """What the sandboxes at these addresses may reach.

        Args:
            rows: sandboxes by their addresses.
            users_of_proxy: the addresses of the sandboxes whose environment names the proxy.
        """
        servers = self._listed | {row.address for row in model_servers.list_allowed(session)}
        owners = {row.owner_id for row in rows.values() if row.owner_id}
        versions = network_access.settings_versions(session, owners) if servers else {}
        return self._make(rows, servers, self._read_named(versions, lambda: nullcontext(session)), users_of_proxy)

    def read_one(self, database: Database, sandbox_id: str, address: str, *, uses_proxy: bool) -> Access:
        """What the sandbox at this address may reach, with one query to the database unless settings have changed."""
        if (found := network_access.read_one(database, sandbox_id)) is None:
            return Access()
        servers = self._listed | found.model_servers
        named = self._read_named(found.settings_versions if servers else {}, database.reading)
        return self._make({address: found.row}, servers, named, {address} if uses_proxy else ())

    def _make(
        self,
        rows: Mapping[str, NetworkRow],
        servers: frozenset[str],
        named: Mapping[str, frozenset[str]],
        users_of_proxy: Collection[str],
    ) -> Access:
        self.model_servers = servers
        found = {address: egress.parse(row.egress) for address, row in rows.items()}
        of_owner = {address: servers & named.get(row.owner_id or "", frozenset()) for address, row in rows.items()}
        proxied = {address: targets(each, uses_proxy=address in users_of_proxy) for address, each in found.items()}
        models = [(address, *each.split(":")) for address, servers in of_owner.items() for each in servers]
        allowed = Allowed(
            sandboxes=frozenset(rows),
            open=frozenset(address for address, each in found.items() if each.is_open),
            networks=_elements((address, network) for address, each in found.items() for network in each.networks),
            models=_elements([*models, *((address, *self._proxy) for address, each in proxied.items() if each)]),
        )
        return Access(allowed, proxied)

    def _read_named(
        self, versions: Mapping[str, str], open_session: Callable[[], AbstractContextManager[Session]]
    ) -> dict[str, frozenset[str]]:
        """The servers that users' settings name, by owner: cached, or read again if the settings' version changed."""
        if len(self._named) > MAX_CACHED:
            self._named.clear()
        known = {owner_id: self._named.get(owner_id) for owner_id in versions}
        found = {owner_id: each[1] for owner_id, each in known.items() if each and each[0] == versions[owner_id]}
        if stale := versions.keys() - found.keys():
            with open_session() as session:
                read = {owner_id: self._servers_of(session, owner_id) for owner_id in stale}
            now = {owner_id: servers for owner_id, servers in read.items() if servers is not None}
            self._named |= {owner_id: (versions[owner_id], servers) for owner_id, servers in now.items()}
            found |= now
        return found

    def _servers_of(self, session: Session, owner_id: str) -> frozenset[str] | None:
        """The servers that a user's settings name; None: they can't be read now, and are read again the next time."""
        try:
            urls = network_access.model_urls(session, self._vault, owner_id)
        except ValueError as error:  # the text of the error may quote parts of the settings
            log.warning("settings_unreadable", owner=owner_id, error=type(error).__name__)
            return None
        return frozenset(filter(None, (model_servers.server_address(url, self._node_address) for url in urls)))


def _elements(parts: Iterable[tuple[object, ...]]) -> frozenset[str]:
    return frozenset(element(*each) for each in parts)
