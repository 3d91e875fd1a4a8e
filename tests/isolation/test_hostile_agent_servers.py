"""Hostile agent servers in real containers harm their own sandboxes only.

Whatever they respond, each operation on them settles in time, other users' operations take as long as before, and the
worker's memory does not grow.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import product
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pytest
from sqlmodel import select

from shared.models import Sandbox, SandboxTransition
from tests import effort
from tests.factories import make_conversation
from tests.services.client import Client
from tests.services.deployment import Deployment, deployed
from tests.services.engine import TINY_IMAGE
from tests.services.private_engine import PrivateEngine
from tests.services.stores import SqliteStores
from tests.services.valkey import Valkey
from tests.waiting import eventually

# The program that replaces the one that the image's server runs for each connection. In the modes `redirect` and
# `refuse`, the server still looks healthy.
ANSWER = r"""
CR=$(printf '\r')
key=
read -r _ path _
while IFS= read -r line && [ "$line" != "$CR" ]; do
    case $line in [Xx]-[Ss]ession-*) key=1 ;; esac
done
read -r mode </tmp/mode
echo x >>/tmp/asked
head() { printf 'HTTP/1.1 %s\r\nConnection: close\r\n%s\r\n' "$1" "$2"; }
say() { head "$1" "Content-Length: ${#2}$CR
$3"; printf %s "$2"; }
case "$mode $path" in
refuse*/api/conversations/count* | redirect*/api/conversations/count*)
    if [ "$key" ]; then say '200 OK' 0; else say '401 Unauthorized' '{}'; fi ;;
silent*) exec sleep 600 ;;
drip*) head '200 OK' ''; while printf ' '; do sleep 1; done ;;
huge*) head '200 OK' ''; exec head -c 400000000 /dev/zero ;;
gzip*) head '200 OK' "Content-Encoding: gzip$CR
"; exec head -c 400000000 /dev/zero | gzip ;;
empty*) say '200 OK' '{}' ;;
pages*) say '200 OK' '{"items":[{"id":"01234567-89ab-cdef-0123-456789abcdef"}],"next_page_id":"more"}' ;;
refuse*) say '401 Unauthorized' '{"detail":"Unauthorized"}' ;;
redirect*) say '307 Temporary Redirect' '{}' "Location: http://169.254.169.254/$CR
" ;;
esac
"""
MODES = ("silent", "drip", "huge", "gzip", "empty", "pages", "refuse", "redirect")
DEADLINE_SECONDS = 90
# The promised time at night. During the tests of a change, the machine is busy with other tests.
SETTLED_SECONDS = effort.choose(quick=DEADLINE_SECONDS, change=DEADLINE_SECONDS, thorough=30)
# An operation on another user's sandbox may take this many seconds, or this many times as long as beside honest
# servers. For a change, the seconds allow for a busy machine and few samples; at night, only for noise.
OTHERS_SECONDS = effort.choose(quick=10, change=10, thorough=1)
OTHERS_TIMES = effort.choose(quick=5, change=5, thorough=2)
MIN_USES = effort.choose(quick=1, change=1, thorough=20)
MAX_GROWTH_KB = 32 * 1024
# Fewer job threads than hostile sandboxes; frequent probes, so that an unresponsive server is found within the limit.
SETTINGS = {
    "AW_CONCURRENCY": effort.choose(quick="8", change="8", thorough="16"),
    "AW_HEALTH_PROBE_SECONDS": "2",
    "AW_HEALTH_TIMEOUT": "10",
    "AW_MAX_ATTEMPTS": "2",
    "AW_STOP_SECONDS": "1",
}
# A change is tested with every second pair of a mode and a plan, because a sandbox costs two seconds of CPU time.
STEP = effort.choose(quick=2, change=2, thorough=1)
MODEL = {"llm_model": "openai/demo", "llm_base_url": "http://127.0.0.1:9"}
SANDBOXES, CONVERSATIONS = "/api/v1/sandboxes", "/api/v1/app-conversations"
Operation = Callable[[str], None]
# The durations of each operation, in seconds.
Durations = dict[str, list[float]]


@pytest.fixture
def service(engine: PrivateEngine, sqlite_stores: SqliteStores, valkey: Valkey) -> Iterator[Deployment]:
    """The running service."""
    with (
        sqlite_stores.fresh() as database_url,
        deployed(engine, database_url=database_url, broker_url=valkey.url) as service,
    ):
        service.environment |= SETTINGS
        service.prepare()
        service.add_spec(TINY_IMAGE, {"TINY_CONVERSES": "1"})
        service.start()
        yield service


class HostileSandboxes:
    """A user's sandboxes with hostile agent servers. Each operation on them returns when it has settled."""

    def __init__(self, service: Deployment, engine: PrivateEngine, alice: Client) -> None:
        self._service, self._engine, self._alice = service, engine, alice
        # The durations of operations on hostile servers.
        self.durations: Durations = defaultdict(list)

    def boot(self, _number: int) -> str:
        """Start a sandbox with an honest server, and a conversation with the sandbox's id."""
        sandbox_id = self._alice.start_sandbox()
        self._alice.await_sandbox(sandbox_id, "RUNNING", deadline_seconds=120)
        with self._service.database.reading() as session:
            row = session.get_one(Sandbox, sandbox_id)
        make_conversation(self._service.database, self._alice.user, row, id=sandbox_id)
        return sandbox_id

    def replace_server(self, sandbox_id: str, mode: str) -> None:
        """Replace the agent server, and wait until the hostile one has received a request."""
        self._inside(sandbox_id, 'printf %s "$1" >/tmp/mode', mode)
        self._inside(sandbox_id, 'printf %s "$1" >/tmp/answer', ANSWER)
        eventually(lambda: self._inside(sandbox_id, "cat /tmp/asked || true"))

    def run(self, operation: Operation, sandbox_id: str) -> None:
        """Run an operation until it settles, and record its duration."""
        began = time.monotonic()
        operation(sandbox_id)
        self.durations[operation.__name__].append(time.monotonic() - began)

    def converse(self, sandbox_id: str) -> None:
        requested = self._alice.start_conversation(sandbox_id=sandbox_id)
        task = self._settle(lambda: self._alice.start_task(requested), "READY", "ERROR")
        assert task["status"] == "READY" or task["reason"]

    def list_files(self, sandbox_id: str) -> None:
        assert self._alice.get(f"{CONVERSATIONS}/{sandbox_id}/files").status_code in (200, 409, 413, 502)

    def pause(self, sandbox_id: str) -> None:
        self._pause(sandbox_id, "frozen", "paused")

    def stop(self, sandbox_id: str) -> None:
        self._pause(sandbox_id, "stopped", "exited")

    def resume(self, sandbox_id: str) -> None:
        assert self._alice.post(f"{SANDBOXES}/{sandbox_id}/resume").status_code == 200
        found = self._settle(lambda: self._alice.sandbox(sandbox_id) or {}, "RUNNING", "ERROR")
        assert found["status"] == "RUNNING" or found["reason"]

    def delete(self, sandbox_id: str) -> None:
        assert self._alice.delete(f"{SANDBOXES}/{sandbox_id}").status_code == 200
        container = f"aw-{sandbox_id}"
        eventually(
            lambda: container not in [*self._engine.containers(), *self._engine.volumes()],
            deadline_seconds=DEADLINE_SECONDS,
        )

    def _inside(self, sandbox_id: str, script: str, *values: str) -> str:
        return self._engine.docker("exec", "--user", "0", f"aw-{sandbox_id}", "sh", "-c", script, "sh", *values)

    def _pause(self, sandbox_id: str, kind: str, state: str) -> None:
        assert self._alice.post(f"{SANDBOXES}/{sandbox_id}/pause", params={"kind": kind}).status_code == 200
        self._settle(lambda: self._alice.sandbox(sandbox_id) or {}, "PAUSED")
        found = self._engine.docker("inspect", "--format", "{{.State.Status}}", f"aw-{sandbox_id}").strip()
        # A check that finds the hostile server before the pause stops the container.
        assert found == state or (found, self._has_failed(sandbox_id)) == ("exited", True)

    def _has_failed(self, sandbox_id: str) -> bool:
        with self._service.database.reading() as session:
            transitions = session.exec(select(SandboxTransition).where(SandboxTransition.sandbox_id == sandbox_id))
            return any(transition.to_status == "ERROR" for transition in transitions)

    @staticmethod
    def _settle(read: Callable[[], dict[str, Any]], *statuses: str) -> dict[str, Any]:
        settled = eventually(
            lambda: found if (found := read())["status"] in statuses else None, deadline_seconds=DEADLINE_SECONDS
        )
        return settled or {}


def use(client: Client, durations: Durations) -> None:
    """Start, use, pause, resume and delete a sandbox; record the duration of each operation."""
    sandbox_id = conversation_id = ""

    def start() -> None:
        nonlocal sandbox_id
        sandbox_id = client.start_sandbox()
        client.await_sandbox(sandbox_id, "RUNNING")

    def converse() -> None:
        nonlocal conversation_id
        task = client.await_start(client.start_conversation(sandbox_id=sandbox_id))
        conversation_id = task["app_conversation_id"]

    def list_files() -> None:
        assert client.get(f"{CONVERSATIONS}/{conversation_id}/files").status_code == 200

    def request(verb: str, status: str) -> None:
        assert client.post(f"{SANDBOXES}/{sandbox_id}/{verb}").status_code == 200
        client.await_sandbox(sandbox_id, status)

    def delete() -> None:
        assert client.delete(f"{SANDBOXES}/{sandbox_id}", params={"wait": "60"}).status_code == 200

    for name, operation in (
        ("start", start),
        ("converse", converse),
        ("list_files", list_files),
        ("pause", lambda: request("pause", "PAUSED")),
        ("resume", lambda: request("resume", "RUNNING")),
        ("delete", delete),
    ):
        began = time.monotonic()
        operation()
        durations[name].append(time.monotonic() - began)


def use_repeatedly(client: Client, is_enough: Callable[[], bool] = lambda: True) -> Durations:
    """Call `use` at least `MIN_USES` times, and until it is enough."""
    durations: Durations = defaultdict(list)
    while len(durations["start"]) < MIN_USES or not is_enough():
        use(client, durations)
    return durations


def use_beside(client: Client, work: Callable[[Event], Collection[Future[None]]]) -> Durations:
    """Call `use` at least `MIN_USES` times beside work that continues until its event is set."""
    ended = Event()
    others = work(ended)
    try:
        durations = use_repeatedly(client)
    finally:
        ended.set()
    for one in others:
        one.result()
    return durations


def p99(seconds: Sequence[float]) -> float:
    """The 99th percentile of durations."""
    return sorted(seconds)[math.ceil(0.99 * len(seconds)) - 1]


def memory(pid: int, name: str) -> int:
    """A memory value of a process, in KB."""
    return int(Path(f"/proc/{pid}/status").read_text().partition(f"{name}:")[2].split()[0])


def test_hostile_agent_servers_harm_their_own_sandboxes_only(
    service: Deployment, engine: PrivateEngine, record_property: Callable[[str, object], None]
) -> None:
    with service.user("alice") as alice, service.user("bob") as bob, ThreadPoolExecutor(3 * len(MODES)) as threads:
        for user in (alice, bob):
            assert user.post("/api/settings", json=MODEL).status_code == 200
        hostile = HostileSandboxes(service, engine, alice)
        plans = (
            (hostile.converse, hostile.list_files),
            (hostile.pause, hostile.resume),
            (hostile.stop, hostile.resume),
        )
        cells = list(product(MODES, plans))[::STEP]
        sandboxes = list(threads.map(hostile.boot, range(len(cells))))

        def operate(sandbox_id: str, plan: tuple[Operation, ...]) -> None:
            for operation in plan:
                hostile.run(operation, sandbox_id)

        def operate_until(ended: Event, sandbox_id: str, plan: tuple[Operation, ...]) -> None:
            while not ended.is_set():
                operate(sandbox_id, plan)

        def attack(sandbox_id: str, mode: str, plan: tuple[Operation, ...]) -> None:
            hostile.replace_server(sandbox_id, mode)
            in_place.wait()
            operate(sandbox_id, (*plan, hostile.delete))

        # The nightly control: the same operations on the same sandboxes with honest servers, for the same time.
        honest = list(zip(sandboxes, cells, strict=True)) if effort.is_thorough() else []
        before = use_beside(
            bob, lambda ended: [threads.submit(operate_until, ended, one, plan) for one, (_, plan) in honest]
        )
        hostile.durations.clear()
        in_place = Barrier(len(cells) + 1, timeout=DEADLINE_SECONDS)
        worker = service.pid("worker")
        is_inactive = memory(worker, "VmRSS")
        Path(f"/proc/{worker}/clear_refs").write_text("5")  # resets the peak
        attacks = [threads.submit(attack, one, *cell) for one, cell in zip(sandboxes, cells, strict=True)]
        in_place.wait()
        during = use_repeatedly(bob, lambda: all(one.done() for one in attacks))
        for one in attacks:
            one.result()
        growth = memory(worker, "VmHWM") - is_inactive
    settled = {name: round(max(seconds), 2) for name, seconds in hostile.durations.items()}
    others = {name: (round(p99(before[name]), 2), round(p99(during[name]), 2)) for name in during}
    counts = (len(before["start"]), len(during["start"]))
    figures = f"settled: {settled}; others' p99 before and during: {others} of {counts}; growth: {growth} KB"
    record_property("figures", figures)
    assert growth <= MAX_GROWTH_KB
    assert max(settled.values()) <= SETTLED_SECONDS, settled
    slower = {name: pair for name, pair in others.items() if pair[1] > max(OTHERS_SECONDS, OTHERS_TIMES * pair[0])}
    assert slower == {}
