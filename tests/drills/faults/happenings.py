"""What happens without a user."""

from datetime import datetime

from shared.clock import now
from shared.ids import new_id
from shared.models import (
    IdempotencyKey,
    Node,
)
from shared.store import nodes, sandboxes, specs
from tests.drills.faults.given import LONG, want_pool
from tests.drills.faults.requests import tell_of
from tests.drills.faults.runner import Runner
from tests.drills.wishes import Verb
from tests.services.engine import TINY_IMAGE
from tests.waiting import eventually
from worker.engine import INSTALLATION_LABEL, SANDBOX_LABEL
from worker.sandbox_container import container_name


def start_unheard(runner: Runner, _subject: str) -> None:
    """A wish whose message was lost."""
    with runner.service.database.transaction() as session:
        spec, owner_id = specs.get_spec(session, TINY_IMAGE), runner.client.person.id
        made = sandboxes.create(session, runner.service.vault, owner_id=owner_id, spec=spec, due_at=now())
    tell_of(runner, Verb.START, made.id)


def fill_pool(runner: Runner, _subject: str) -> None:
    """A pool is wanted."""
    want_pool(runner, 1)


def empty_pool(runner: Runner, _subject: str) -> None:
    """A pool is not wanted any more."""
    want_pool(runner, 0)


def make_room(runner: Runner, _subject: str) -> None:
    """The node takes sandboxes again."""
    with runner.service.database.transaction() as session:
        nodes.uncordon(session, runner.service.environment["AW_NODE"])


def stop_container(runner: Runner, sandbox_id: str) -> None:
    """A container ends behind our back."""
    runner.engine.docker("kill", container_name(sandbox_id))


def leave_container(runner: Runner, sandbox_id: str) -> None:
    """A container and a volume that no row owns."""
    name = container_name(sandbox_id or new_id())
    labels = {INSTALLATION_LABEL: runner.service.installation, SANDBOX_LABEL: name.removeprefix("aw-")}
    flags = [word for key, value in labels.items() for word in ("--label", f"{key}={value}")]
    runner.engine.docker("volume", "create", *flags, name)
    runner.engine.docker("create", "--name", name, *flags, TINY_IMAGE)


def leave_answer(runner: Runner, _subject: str) -> None:
    """A kept answer whose time is over."""
    row = IdempotencyKey(
        owner_id=runner.client.person.id,
        operation="POST /",
        key=new_id(),
        fingerprint="",
        status=200,
        answer={},
        expires_at=now() - LONG,
    )
    with runner.service.database.transaction() as session:
        session.add(row)


def boot_worker(runner: Runner, _subject: str) -> None:
    """A worker starts, and lives or dies."""
    began = now()
    runner.start_process("worker")
    eventually(lambda: runner.is_dead("worker") or _heartbeat(runner) > began)


def _heartbeat(runner: Runner) -> datetime:
    with runner.service.database.reading() as session:
        return session.get_one(Node, runner.service.environment["AW_NODE"]).heartbeat_at
