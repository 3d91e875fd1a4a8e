"""The installation of a chaos run: two engines with a door each, three workers, two API processes, a broker, a database
and a registry.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from urllib.parse import quote

from sqlmodel import col, select

from shared.db.database import Database
from shared.db.migrations import migrate
from shared.ids import new_id
from shared.models import Sandbox
from shared.sandboxes import specs
from shared.states import Status
from tests.drills.chaos.clocked import MACHINE, VARIABLE
from tests.services.deployment import Deployment
from tests.services.deployment_settings import BOUNDED, SHORTENED
from tests.services.directories import short_directory
from tests.services.engine import TINY_IMAGE
from tests.services.faulty_engine import FaultyEngine, running_faulty_engine
from tests.services.link import Link, Network, running_network
from tests.services.postgres import Postgres, running_postgres
from tests.services.private_engine import PrivateEngine, running_private_engine
from tests.services.registry import Registry, running_registry
from tests.services.slots import is_unused, taken_slot
from tests.services.valkey import Valkey, running_valkey
from tests.waiting import eventually

# A unique name, because bridges and firewall tables have it: another run on this machine may be active, too.
INSTALLATION = f"test-chaos-{new_id()[:6]}"
NODES = ("node-a", "node-b")
APIS = ("api-1", "api-2")
# Two workers share one engine, so each can encounter the other's leases.
WORKERS = {"worker-a1": "node-a", "worker-a2": "node-a", "worker-b1": "node-b"}
BROKEN_IMAGE = "agent-workspace/tiny:broken"
SLOW_IMAGE = "agent-workspace/tiny:slow"
# The only image whose agent server accepts conversations.
CONVERSATIONAL_IMAGE = "agent-workspace/tiny:conversational"
CONVERSATIONAL = {"TINY_CONVERSES": "1", "TINY_TITLE": "A title", "TINY_REPORTS": "1"}
# The image of the warm pool.
WARM_IMAGE = "agent-workspace/tiny:warm"
WARM = {"warm_target": 2, "warm_most": 3}
# Quotas of each user, low enough that some requests are refused.
QUOTA_RUNNING, QUOTA_SANDBOXES = 5, 9
# The creation of a conversation takes time, as with a real agent server, so faults can hit it.
CREATES = {"TINY_CREATE_SECONDS": "0.3"}
DISK_BYTES = 256 * 1024 * 1024
BOUNDS = BOUNDED | {"AW_MIN_FREE_DISK_BYTES": str(32 * 1024 * 1024)}
# PostgreSQL must not lose commits in a crash; other tests run without this.
DURABLE = "synchronous_commit=on"
SETTINGS = SHORTENED | {
    "AW_NODE_LOST_SECONDS": "6",
    "AW_HEALTH_TIMEOUT": "20",
    "AW_STOP_SECONDS": "1",
    "AW_FIRST_MESSAGE_TIMEOUT_SECONDS": "1",
    "AW_NODE_CAPACITY": "40",
}
QUOTAS = {"AW_QUOTA_RUNNING": str(QUOTA_RUNNING), "AW_QUOTA_SANDBOXES": str(QUOTA_SANDBOXES)}


def door_of(node: str) -> str:
    """The process name of a node's door."""
    return f"door-{node}"


@dataclass(frozen=True)
class Site:
    """The running parts of the installation. A fault that changes a part restores it when it is healed."""

    service: Deployment
    engines: dict[str, PrivateEngine]
    # The proxies through which the service reaches the engines.
    faulty: dict[str, FaultyEngine]
    valkey: Valkey
    postgres: Postgres | None
    registry: Registry
    directory: Path
    # The sandboxes' network on each node.
    networks: dict[str, IPv4Network]
    # Each process's link to the database server, if there is one, and to the broker.
    database_links: dict[str, Link]
    broker_links: dict[str, Link]
    # The sandboxes whose containers the nemesis started or unpaused.
    resumed: set[str] = field(default_factory=set)
    # The volumes whose mounts Docker may have miscounted, because a start from outside could not mount them. Docker
    # keeps the record of such a volume until it is restarted (decision 55).
    miscounted: set[str] = field(default_factory=set)

    def start_process(self, name: str) -> None:
        """Start an API process or a worker with its own clock."""
        environment = {
            VARIABLE: str(self.clock(name)),
            "AW_REDIS_URL": f"redis+socket://{self.broker_links[name].path}",
        }
        if name in self.database_links:
            folder = quote(str(self.database_links[name].path.parent), safe="")
            url = self.service.environment["AW_DATABASE_URL"]
            environment["AW_DATABASE_URL"] = re.sub(r"host=[^&]*", f"host={folder}", url)
        if name in WORKERS:
            self.service.start_worker(name, WORKERS[name], **environment, **self._bounds(WORKERS[name]))
        else:
            self.service.start_api(name, **environment)

    def start_door(self, node: str) -> None:
        """Start a node's door, unless it runs."""
        self.service.start_door(node, **self._bounds(node))

    def _bounds(self, node: str) -> dict[str, str]:
        return {**BOUNDS, "AW_SANDBOX_ADDRESSES": str(self.networks[node])}

    def clock(self, process: str) -> Path:
        """The file with the offset of a process's clock, in seconds."""
        return self.directory / f"{process}.clock"

    def set_clock(self, process: str, seconds: int) -> None:
        """Set the offset of a process's clock."""
        _set_offset(self.clock(process), seconds)

    def set_machine_clock(self, seconds: int) -> None:
        """Set the offset of the clock of all processes and of their database, which is SQLite."""
        _set_offset(self.directory / MACHINE, seconds)


def _set_offset(file: Path, seconds: int) -> None:
    new = file.with_suffix(".new")
    new.write_text(str(seconds))
    new.replace(file)


@contextmanager
def running_site(database: str, *, short_timeouts: bool) -> Iterator[Site]:
    """Run a site for the length of the block.

    Args:
        database: `sqlite` or `postgresql`.
        short_timeouts: use shorter leases and intervals than the service's defaults.
    """
    with ExitStack() as stack:
        directory = stack.enter_context(short_directory("chaos"))
        postgres = stack.enter_context(running_postgres(DURABLE, durable=True)) if database == "postgresql" else None
        valkey = stack.enter_context(running_valkey())
        registry = stack.enter_context(running_registry(TINY_IMAGE))
        engines = {name: stack.enter_context(_engine()) for name in NODES}
        url = _make_database(directory, postgres)
        faulty = {name: stack.enter_context(running_faulty_engine(engine)) for name, engine in engines.items()}
        network = stack.enter_context(running_network())  # before the processes, which need its links until they end
        service = _make_service(directory, url, valkey, faulty, registry, SETTINGS if short_timeouts else {})
        stack.callback(service.stop)
        database_links, broker_links = _link(network, directory, valkey, postgres)
        slots = [stack.enter_context(taken_slot(lambda slot: is_unused(slot.network))) for _ in NODES]
        networks = {name: slot.network for name, slot in zip(NODES, slots, strict=True)}
        links = database_links, broker_links
        site = Site(service, engines, faulty, valkey, postgres, registry, directory, networks, *links)
        site.set_machine_clock(0)
        for name in (*APIS, *WORKERS):
            site.set_clock(name, 0)
            site.start_process(name)
        eventually(lambda: _find_warm_sandbox(service.database))  # a claim must succeed during the first round
        yield site


def _find_warm_sandbox(database: Database) -> str | None:
    is_warm = col(Sandbox.owner_id).is_(None), Sandbox.status == Status.RUNNING
    with database.reading() as session:
        return session.exec(select(Sandbox.id).where(*is_warm)).first()


@contextmanager
def _engine() -> Iterator[PrivateEngine]:
    with running_private_engine([TINY_IMAGE], disk_bytes=DISK_BYTES) as engine:
        for image in (BROKEN_IMAGE, SLOW_IMAGE, CONVERSATIONAL_IMAGE, WARM_IMAGE):
            engine.docker("tag", TINY_IMAGE, image)
        yield engine


def _link(
    network: Network, directory: Path, valkey: Valkey, postgres: Postgres | None
) -> tuple[dict[str, Link], dict[str, Link]]:
    """A link of each process to the database and to the broker."""
    database_links, broker_links = {}, {}
    for name in (*APIS, *WORKERS):
        folder = directory / "links" / name
        folder.mkdir(parents=True)
        broker_links[name] = Link(network, folder / "broker.sock", valkey.socket)
        if postgres:
            database_links[name] = Link(network, folder / postgres.socket.name, postgres.socket)
    return database_links, broker_links


def _make_database(directory: Path, postgres: Postgres | None) -> str:
    url = postgres.url(postgres.create()) if postgres else f"sqlite:///{directory}/chaos.db"
    migrate(url)
    return url


def _make_service(
    directory: Path,
    url: str,
    valkey: Valkey,
    engines: dict[str, FaultyEngine],
    registry: Registry,
    settings: dict[str, str],
) -> Deployment:
    service = Deployment(
        directory,
        engines,
        database_url=url,
        broker_url=valkey.url,
        installation=INSTALLATION,
        settings=settings | QUOTAS,
        launcher="tests.drills.chaos.clocked",
    )
    service.prepare(TINY_IMAGE, registry.image)
    service.add_spec(BROKEN_IMAGE, {"TINY_EXIT_CODE": "3"})
    service.add_spec(SLOW_IMAGE, {"TINY_BOOT_SECONDS": "2"})
    service.add_spec(CONVERSATIONAL_IMAGE, CONVERSATIONAL | CREATES)
    service.add_spec(WARM_IMAGE, {})
    with service.database.transaction() as session:
        specs.change(session, WARM_IMAGE, WARM)
    return service
