"""Everything that a chaos run breaks: two engines, three workers, two API processes, broker, database, registry."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from shared.migrations import migrate
from tests.drills.chaos.clocked import VARIABLE
from tests.services.directories import short_directory
from tests.services.engine import TINY_IMAGE
from tests.services.postgres import Postgres, running_postgres
from tests.services.private_engine import PrivateEngine, running_private_engine
from tests.services.registry import Registry, running_registry
from tests.services.service import Service
from tests.services.valkey import Valkey, running_valkey

INSTALLATION = "test-chaos"
NODES = ("node-a", "node-b")
APIS = ("api-1", "api-2")
# Two workers beside one engine: either may find the other's leases.
WORKERS = {"worker-a1": "node-a", "worker-a2": "node-a", "worker-b1": "node-b"}
BROKEN_IMAGE = "agent-workspace/tiny:broken"
SLOW_IMAGE = "agent-workspace/tiny:slow"
# Its agent server holds conversations; the others' refuse them.
TALKING_IMAGE = "agent-workspace/tiny:talking"
# As the real one: much may happen in the midst of it.
CREATES = {"TINY_CREATE_SECONDS": "0.3"}
DISK_BYTES = 192 * 1024 * 1024
# What a database must not lose by a crash of its own; tests elsewhere do without.
DURABLE = "synchronous_commit=on"
HURRIED = {
    "AW_LEASE_SECONDS": "3",
    "AW_REPUBLISH_SECONDS": "1",
    "AW_SWEEP_SECONDS": "0.3",
    "AW_RESYNC_SECONDS": "3",
    "AW_HEARTBEAT_SECONDS": "1",
    "AW_NODE_LOST_SECONDS": "6",
    "AW_HEALTH_TIMEOUT": "20",
    "AW_STOP_SECONDS": "1",
    "AW_FIRST_MESSAGE_SECONDS": "1",
    "AW_NODE_CAPACITY": "40",
}
# The service's own defaults, where tests elsewhere have others.
UNHURRIED = {
    "AW_LEASE_SECONDS": "15",
    "AW_REPUBLISH_SECONDS": "5",
    "AW_SWEEP_SECONDS": "1",
    "AW_RESYNC_SECONDS": "5",
    "AW_HEARTBEAT_SECONDS": "5",
}


@dataclass(frozen=True)
class Site:
    """The parts, running; what a fault has taken away, it gives back itself."""

    service: Service
    engines: dict[str, PrivateEngine]
    valkey: Valkey
    postgres: Postgres | None
    registry: Registry
    directory: Path

    def start_process(self, name: str) -> None:
        """Start an API process or a worker, with a clock of its own."""
        environment = {VARIABLE: str(self.clock(name))}
        if name in WORKERS:
            node = WORKERS[name]
            engine = self.engines[node]
            own = {"AW_NODE": node, "AW_DOCKER_HOST": engine.host, "AW_NODE_ADDRESS": engine.address}
            self.service.start_worker(name, **environment, **own)
        else:
            self.service.start_api(name, **environment)

    def clock(self, process: str) -> Path:
        """The file that says how far off a process's clock is, in seconds."""
        return self.directory / f"{process}.clock"

    def set_clock(self, process: str, seconds: int) -> None:
        """Let a process's clock be so far off from now on."""
        new = self.clock(process).with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(self.clock(process))


@contextmanager
def running_site(database: str, *, hurried: bool) -> Iterator[Site]:
    """All of it, for the length of the block.

    Args:
        database: `sqlite` or `postgresql`.
        hurried: with shorter leases and pauses than the service's defaults.
    """
    with ExitStack() as stack:
        directory = stack.enter_context(short_directory("chaos"))
        postgres = stack.enter_context(running_postgres(DURABLE, durable=True)) if database == "postgresql" else None
        valkey = stack.enter_context(running_valkey())
        registry = stack.enter_context(running_registry(TINY_IMAGE))
        engines = {name: stack.enter_context(_engine()) for name in NODES}
        service = _make_service(directory, _make_database(directory, postgres), valkey, engines, registry)
        service.environment |= HURRIED if hurried else UNHURRIED
        stack.callback(service.stop)
        site = Site(service, engines, valkey, postgres, registry, directory)
        for name in (*APIS, *WORKERS):
            site.set_clock(name, 0)
            site.start_process(name)
        yield site


@contextmanager
def _engine() -> Iterator[PrivateEngine]:
    with running_private_engine([TINY_IMAGE], disk_bytes=DISK_BYTES) as engine:
        for image in (BROKEN_IMAGE, SLOW_IMAGE, TALKING_IMAGE):
            engine.docker("tag", TINY_IMAGE, image)
        yield engine


def _make_database(directory: Path, postgres: Postgres | None) -> str:
    url = postgres.url(postgres.create()) if postgres else f"sqlite:///{directory}/chaos.db"
    migrate(url)
    return url


def _make_service(
    directory: Path, url: str, valkey: Valkey, engines: dict[str, PrivateEngine], registry: Registry
) -> Service:
    engine = engines[NODES[0]]
    service = Service(
        directory,
        database_url=url,
        broker_url=valkey.url,
        docker_host=engine.host,
        gateway=engine.gateway,
        address=engine.address,
        installation=INSTALLATION,
        launcher="tests.drills.chaos.clocked",
    )
    service.prepare(TINY_IMAGE, registry.image)
    service.add_spec(BROKEN_IMAGE, {"TINY_EXIT_CODE": "3"})
    service.add_spec(SLOW_IMAGE, {"TINY_BOOT_SECONDS": "2"})
    service.add_spec(TALKING_IMAGE, {"TINY_CONVERSES": "1", "TINY_TITLE": "A talk"} | CREATES)
    return service
