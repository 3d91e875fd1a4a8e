"""Sandboxes as these tests start, change and read them."""

from sqlmodel import col, select, update

from shared.clock import now
from shared.models import Sandbox, SandboxTransition
from shared.states import MOVES, Desired, Status
from shared.store import sandboxes, specs, wishes
from tests.factories import Person
from tests.fakes.engine import IMAGE, FakeEngine
from worker.containers import ContainerState
from worker.converge import converge
from worker.parts import Parts


def start(parts: Parts, user: Person) -> str:
    """Wish for a sandbox, as the API does."""
    with parts.database.transaction() as session:
        spec = specs.get_spec(session, IMAGE)
        return sandboxes.create(session, parts.vault, owner_id=user.id, spec=spec, due_at=now()).id


def wish(parts: Parts, sandbox_id: str, desired: Desired) -> None:
    """Wish for another state, as the API does."""
    with parts.database.transaction() as session:
        wishes.wish(session, session.get_one(Sandbox, sandbox_id), desired, due_at=now())


def row(parts: Parts, sandbox_id: str) -> Sandbox:
    with parts.database.reading() as session:
        return session.get_one(Sandbox, sandbox_id)


def history(parts: Parts, sandbox_id: str) -> list[str]:
    with parts.database.reading() as session:
        return [move.to_status for move in sandboxes.transitions(session, sandbox_id)]


def running(parts: Parts, user: Person) -> str:
    sandbox_id = start(parts, user)
    converge(parts, sandbox_id)
    assert row(parts, sandbox_id).status == Status.RUNNING
    return sandbox_id


def assert_settled(parts: Parts, sandbox_id: str) -> None:
    """Nobody holds the row, nothing is due, and the last wish was answered."""
    found = row(parts, sandbox_id)
    assert (found.lease_owner, found.lease_until, found.due_at) == (None, None, None)
    assert found.observed_generation == found.generation


def container_runs(parts: Parts) -> bool:
    """Whether the engine has a container that runs: what comes next is the answer."""
    assert isinstance(parts.engine, FakeEngine)
    return any(found.state == ContainerState.RUNNING for found in parts.engine.containers.values())


def once(engine: FakeEngine, verb: str, action: object) -> None:
    """Do something just before the verb is next carried out."""

    def act(_name: str) -> None:
        del engine.before[verb]
        action()  # type: ignore[operator]

    engine.before[verb] = act


def expire_lease(parts: Parts, sandbox_id: str) -> None:
    """Let time pass for the lease alone."""
    with parts.database.transaction() as session:
        session.execute(update(Sandbox).where(col(Sandbox.id) == sandbox_id).values(lease_until=now()))


def mark_due(parts: Parts, sandbox_id: str) -> None:
    with parts.database.transaction() as session:
        session.execute(update(Sandbox).where(col(Sandbox.id) == sandbox_id).values(due_at=now()))


def assert_legal(parts: Parts, sandbox_id: str) -> None:
    """Every move in the history is in the table."""
    with parts.database.reading() as session:
        moves = session.exec(select(SandboxTransition).where(SandboxTransition.sandbox_id == sandbox_id)).all()
    assert all(move.from_status is None or move.to_status in MOVES[Status(move.from_status)] for move in moves)
