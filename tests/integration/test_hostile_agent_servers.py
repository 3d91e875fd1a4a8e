"""Hostile agent servers in real containers: they block no pause or delete, delay no other sandbox, fill no memory."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.db.database import Database
from shared.models import Sandbox
from tests import effort
from tests.factories import make_conversation
from tests.services.client import Client
from tests.services.deployment import Deployment, deployed
from tests.services.engine import TINY_IMAGE
from tests.services.private_engine import PrivateEngine
from tests.services.stores import SqliteStores
from tests.services.valkey import Valkey
from tests.waiting import eventually

# Replaces the program that the image's server runs for each connection.
ANSWER = r"""
CR=$(printf '\r')
while IFS= read -r line && [ "$line" != "$CR" ]; do :; done
read -r mode </tmp/mode
echo x >>/tmp/asked
head() { printf 'HTTP/1.1 %s\r\n%s\r\n' "$1" "$2"; }
case $mode in
silent) exec sleep 600 ;;
drip) head '200 OK' ''; while printf ' '; do sleep 1; done ;;
flood) head '200 OK' ''; exec head -c 400000000 /dev/zero ;;
inflate) head '200 OK' "Content-Encoding: gzip$CR
"; exec head -c 400000000 /dev/zero | gzip ;;
empty) head '200 OK' "Content-Length: 2$CR
"; printf '{}' ;;
esac
"""
MODES = ("silent", "drip", "flood", "inflate", "empty")
# The actions on each sandbox, in order. The actions from RUNNING alone are for nightly runs.
VERBS = [("frozen", "stopped", "delete"), ("stopped",), ("delete",)]
RECONCILED_SECONDS = 30
MAX_GROWTH_KB = 64 * 1024
PATH = "/api/v1/sandboxes"


@pytest.fixture
def service(engine: PrivateEngine, sqlite_stores: SqliteStores, valkey: Valkey, tmp_path: Path) -> Iterator[Deployment]:
    """The running service, with frequent probes of agent servers."""
    with (
        sqlite_stores.fresh(tmp_path) as database_url,
        deployed(engine, TINY_IMAGE, database_url=database_url, broker_url=valkey.url) as service,
    ):
        service.environment |= {"AW_HEALTH_PROBE_SECONDS": "2", "AW_STOP_SECONDS": "1"}
        service.start()
        yield service


@pytest.fixture
def alice(service: Deployment) -> Iterator[Client]:
    with service.user("alice") as client:
        yield client


def run(alice: Client) -> str:
    """Start a sandbox, and wait until it runs."""
    sandbox_id = alice.start_sandbox()
    alice.await_sandbox(sandbox_id, "RUNNING")
    return sandbox_id


def replace_server(engine: PrivateEngine, database: Database, alice: Client, sandbox_id: str, mode: str) -> None:
    """Replace the agent server in a sandbox with a conversation that a pause must interrupt."""
    with database.reading() as session:
        row = session.get_one(Sandbox, sandbox_id)
    make_conversation(database, alice.person, row)
    container = f"aw-{sandbox_id}"
    engine.docker("exec", container, "sh", "-c", f"echo {mode} >/tmp/mode")
    engine.docker("exec", "--user", "0", container, "sh", "-c", 'printf %s "$1" >/server/answer', "sh", ANSWER)
    eventually(lambda: engine.docker("exec", container, "sh", "-c", "cat /tmp/asked || true"))


def memory(pid: int, name: str) -> int:
    """A memory value of a process, in KB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def put_away(alice: Client, engine: PrivateEngine, hostile: list[str], verb: str) -> None:
    """Pause or delete all hostile sandboxes together, and start another sandbox meanwhile."""
    began = time.monotonic()
    for sandbox_id in hostile:
        url = f"{PATH}/{sandbox_id}"
        answer = alice.delete(url) if verb == "delete" else alice.post(f"{url}/pause", params={"kind": verb})
        assert answer.status_code == 200
    run(alice)
    for sandbox_id in hostile:
        left = RECONCILED_SECONDS - (time.monotonic() - began)
        eventually(lambda: is_put_away(alice, engine, sandbox_id, verb), deadline_seconds=left)  # noqa: B023


def is_put_away(alice: Client, engine: PrivateEngine, sandbox_id: str, verb: str) -> bool:
    if verb == "delete":
        return f"aw-{sandbox_id}" not in [*engine.containers(), *engine.volumes()]
    found = alice.sandbox(sandbox_id) or {}
    state = engine.docker("inspect", "--format", "{{.State.Status}}", f"aw-{sandbox_id}").strip()
    return (found["status"], state) == ("PAUSED", {"frozen": "paused", "stopped": "exited"}[verb])


@pytest.mark.parametrize("verbs", VERBS[: effort.choose(quick=1, change=1, thorough=3)])
def test_hostile_sandboxes_are_paused_and_deleted(
    service: Deployment, alice: Client, engine: PrivateEngine, verbs: tuple[str, ...]
) -> None:
    hostile, well = [run(alice) for _ in MODES], run(alice)
    worker = service.pid("worker")
    before = memory(worker, "VmRSS")
    Path(f"/proc/{worker}/clear_refs").write_text("5")  # resets the peak
    for sandbox_id, mode in zip(hostile, MODES, strict=True):
        replace_server(engine, service.database, alice, sandbox_id, mode)
    for verb in verbs:
        put_away(alice, engine, hostile, verb)
    assert memory(worker, "VmHWM") - before <= MAX_GROWTH_KB
    assert (alice.sandbox(well) or {}).get("status") == "RUNNING"
