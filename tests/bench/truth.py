"""The delay until the API shows an outside change to a container, compared with that of the engine's own event.

    .venv/bin/python -m tests.bench.truth [changes of each kind, 20] [other sandboxes on the node, 150]

The benchmark has its own engine, broker, API and worker, with the default settings. First the worker follows the
engine's events, then the stream of events is silent. Times start just before the call of the engine.
"""

import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from docker import APIClient

from shared.db.database import Database
from shared.db.migrations import migrate
from shared.ids import new_id
from shared.states import PauseKind, Status
from tests.factories import ApiUser, make_sandbox
from tests.services.client import Client
from tests.services.deployment import Deployment, deployed
from tests.services.directories import short_directory
from tests.services.engine import TINY_IMAGE
from tests.services.engine_proxy import EngineProxy, running_engine_proxy
from tests.services.private_engine import PrivateEngine, running_private_engine
from tests.services.valkey import running_valkey
from tests.waiting import eventually
from worker.engine.docker_engine import INSTALLATION_LABEL

INSTALLATION = "test-service"
DEADLINE = 60.0
# The change of the container, the event that the engine sends, and the resulting status.
CHANGES: dict[str, tuple[Callable[[APIClient, str], object], str, str]] = {
    "pause": (lambda api, name: api.pause(name), "pause", "PAUSED"),
    "unpause": (lambda api, name: api.unpause(name), "unpause", "RUNNING"),
    "kill": (lambda api, name: api.kill(name), "die", "ERROR"),
    "stop": (lambda api, name: api.stop(name, timeout=0), "die", "ERROR"),
    "remove": (lambda api, name: api.remove_container(name, force=True), "die", "ERROR"),
}


class Follower(threading.Thread):
    """Follows the engine's events and does nothing else: the lower bound of the delay."""

    def __init__(self, host: str) -> None:
        super().__init__(daemon=True)
        self.heard: dict[tuple[str, str], float] = {}
        self._stream = APIClient(host, version="auto").events(decode=True, filters={"type": "container"})
        self.start()

    def run(self) -> None:
        """Record when each event arrives."""
        for event in self._stream:
            self.heard[event["Actor"]["Attributes"]["name"], event["Action"]] = time.perf_counter()


class Bench:
    """The sandbox whose container is changed."""

    def __init__(self, engine: PrivateEngine, alice: Client) -> None:
        self._api = APIClient(engine.host, version="auto")
        self._follower = Follower(engine.host)
        self._alice = alice
        self._sandbox_id = alice.start_sandbox()
        self._name = f"aw-{self._sandbox_id}"
        self._await("RUNNING")

    def measure(self, change: str) -> tuple[float, float]:
        """The seconds until the bare follower gets the event of a change, and until the API shows the change."""
        act, event, status = CHANGES[change]
        self._prepare(change)
        self._follower.heard.clear()
        began = time.perf_counter()
        act(self._api, self._name)
        shown = self._await(status) - began
        heard = eventually(lambda: self._follower.heard.get((self._name, event))) or 0.0
        return heard - began, shown

    def _prepare(self, change: str) -> None:
        verb, status = ("pause", "PAUSED") if change == "unpause" else ("resume", "RUNNING")
        assert self._alice.post(f"/api/v1/sandboxes/{self._sandbox_id}/{verb}").status_code == 200
        self._await(status)
        time.sleep(0.5 + time.time() % 1)  # lets earlier events arrive, and varies the phase of the poll

    def _await(self, status: str) -> float:
        def has_status() -> bool:
            found = self._alice.sandbox(self._sandbox_id) or {}
            return bool(found["status"] == status)

        eventually(has_status, deadline_seconds=DEADLINE, interval_seconds=0.005)
        return time.perf_counter()


def main(times: int = 20, others: int = 150) -> None:
    """Measure and print."""
    with started() as (service, engine, proxy), service.user("alice") as alice:
        populate(service.database, engine, alice.user, others)
        service.start_worker()
        eventually(lambda: "following_events" in service.log())
        bench = Bench(engine, alice)
        print_line(f"{times} of each; {others} other sandboxes on the node; seconds")
        print_line("| worker | change | who | median | fastest | p95 | slowest |")
        print_line("|---|---|---|---|---|---|---|")
        report(bench, "events", list(CHANGES), times)
        proxy.stall()
        report(bench, "stream silent", ["pause", "kill"], times)


def report(bench: Bench, mode: str, changes: list[str], times: int) -> None:
    """Print a row for the engine's own event and one for the API, for each change."""
    for change in changes:
        found = [bench.measure(change) for _ in range(times)]
        for who, seconds in zip(("bare event", "API"), zip(*found, strict=True), strict=True):
            ordered = sorted(seconds)
            spread = (statistics.median(ordered), ordered[0], ordered[int(len(ordered) * 0.95) - 1], ordered[-1])
            print_line(f"| {mode} | {change} | {who} | {' | '.join(f'{value:.3f}' for value in spread)} |")


def print_line(line: str) -> None:
    """Print a line and flush."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def populate(database: Database, engine: PrivateEngine, owner: ApiUser, others: int) -> None:
    """Create stopped sandboxes, each with a created container and a volume."""
    api = APIClient(engine.host, version="auto")
    for _ in range(others):
        columns = {"id": new_id(), "pause_kind": PauseKind.STOPPED, "spec_id": TINY_IMAGE, "node_id": "node-test"}
        name = f"aw-{make_sandbox(database, owner, status=Status.PAUSED, **columns).id}"
        labels = {INSTALLATION_LABEL: INSTALLATION}
        api.create_volume(name, labels=labels)
        binds = api.create_host_config(binds={name: {"bind": "/workspace", "mode": "rw"}})
        api.create_container(TINY_IMAGE, name=name, labels=labels, host_config=binds)


@contextmanager
def started() -> Iterator[tuple[Deployment, PrivateEngine, EngineProxy]]:
    """The API, and the servers that it and a worker need."""
    with ExitStack() as stack:
        engine = stack.enter_context(running_private_engine([TINY_IMAGE], in_memory=False))
        proxy = stack.enter_context(running_engine_proxy(engine))
        broker = stack.enter_context(running_valkey())
        url = f"sqlite:///{stack.enter_context(short_directory('bench')) / 'bench.db'}"
        migrate(url)
        service = stack.enter_context(
            deployed(
                proxy,
                TINY_IMAGE,
                database_url=url,
                broker_url=broker.url,
                prints_log=False,
                settings={"AW_NODE_CAPACITY": "1000"},
            )
        )
        service.start_api()
        yield service, engine, proxy


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
