"""The service as `make run` starts it, with a store, a broker and containers of the benchmark's own."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from docker import APIClient
from sqlmodel import col, select

from shared.db.migrations import migrate
from shared.models import Sandbox
from shared.sandboxes import specs
from shared.states import Desired, Status
from tests.services.client import Client
from tests.services.deployment import Deployment, deployed
from tests.services.directories import short_directory
from tests.services.engine import SANDBOX_IMAGE, TINY_IMAGE, docker_engine, name_installation
from tests.services.engine_address import ENGINE
from tests.services.machine_engine import machine_engine
from tests.services.postgres import running_postgres
from tests.services.processes import start_module
from tests.services.slots import is_unused, taken_slot
from tests.services.valkey import running_valkey
from tests.waiting import eventually
from worker.engine.docker_engine import DockerEngine

# Durable commits, as a production server has them.
POSTGRES = ("fsync=on", "synchronous_commit=on", "full_page_writes=on", "shared_buffers=512MB", "autovacuum=on")
CAPACITY = 1000
# Network isolation and disks as by default.
CONFINED = {"AW_NETWORK_ISOLATION": "on", "AW_SANDBOX_DISK_BYTES": str(20 * 1024**3)}


@dataclass(frozen=True)
class Site:
    """The service, a user's client, and its engine."""

    service: Deployment
    client: Client
    engine: DockerEngine
    api: APIClient
    # The label of bare containers: the service would remove containers that have its own label and no row.
    bare_installation: str
    # The processes of the service, including the broker.
    pids: Callable[[], list[int]]

    def set_pool(self, image: str, size: int) -> None:
        """Set the size of a spec's warm pool."""
        with self.service.database.transaction() as session:
            specs.change(session, image, {"warm_target": size, "warm_most": size + 2 if size else 0})

    def await_pool(self, image: str, size: int, deadline_seconds: float = 300) -> None:
        """Wait until the pool has that size and no sandbox boots or is deleted."""
        eventually(lambda: self._members(image) == size and not self._is_busy(), deadline_seconds=deadline_seconds)

    def _members(self, image: str) -> int:
        ready = (col(Sandbox.owner_id).is_(None), Sandbox.status == Status.RUNNING, Sandbox.desired == Desired.RUNNING)
        with self.service.database.reading() as session:
            return len(session.exec(select(Sandbox.id).where(Sandbox.spec_id == image, *ready)).all())

    def _is_busy(self) -> bool:
        unsettled = (col(Sandbox.generation) != col(Sandbox.observed_generation)) | col(Sandbox.lease_until).is_not(
            None
        )
        with self.service.database.reading() as session:
            return session.exec(select(Sandbox.id).where(unsettled).limit(1)).first() is not None


@contextmanager
def running_site(database: str) -> Iterator[Site]:
    """One API process and one worker beside this machine's engine, with the default settings."""
    installation = name_installation()
    with ExitStack() as stack:
        bare_installation = name_installation()
        engine = stack.enter_context(docker_engine(bare_installation))
        broker = stack.enter_context(running_valkey())
        service = stack.enter_context(
            deployed(
                stack.enter_context(machine_engine(installation)),
                SANDBOX_IMAGE,
                TINY_IMAGE,
                database_url=stack.enter_context(running_store(database)),
                broker_url=broker.url,
                prints_log=False,
                installation=installation,
                settings={"AW_NODE_CAPACITY": str(CAPACITY)},
                start=start_module,
            )
        )
        service.start_api()
        slot = stack.enter_context(taken_slot(lambda one: is_unused(one.network)))
        service.start_worker(**CONFINED, AW_SANDBOX_ADDRESSES=str(slot.network))
        eventually(lambda: "following_events" in service.log(), deadline_seconds=60)
        client = stack.enter_context(service.user("alice"))
        stack.callback(_delete_all, client)
        api = APIClient(ENGINE, version="auto")
        stack.callback(api.close)
        yield Site(
            service,
            client,
            engine,
            api,
            bare_installation,
            lambda: [service.pid("api"), service.pid("worker"), broker.pid],
        )


@contextmanager
def running_store(database: str) -> Iterator[str]:
    """An empty store of that kind, migrated; its URL."""
    with ExitStack() as stack:
        if database == "postgresql":
            server = stack.enter_context(running_postgres(*POSTGRES, durable=True))
            url = server.url(server.create())
        else:
            url = f"sqlite:///{stack.enter_context(short_directory('bench')) / 'bench.db'}"
        migrate(url)
        yield url


def _delete_all(client: Client) -> None:
    with suppress(Exception):  # the engine's cleanup removes the rest
        for item in client.read("/api/v1/sandboxes/search")["items"]:
            client.delete(f"/api/v1/sandboxes/{item['id']}")
