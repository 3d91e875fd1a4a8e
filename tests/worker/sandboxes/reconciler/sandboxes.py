"""Sandboxes as these tests start, change and read them."""

from sqlmodel import col, select, update

from shared.clock import now
from shared.models import Sandbox, SandboxTransition
from shared.sandboxes import desired_state, specs
from shared.sandboxes import queries as sandbox_queries
from shared.states import TRANSITIONS, Desired, Status
from shared.warm_pool import start as sandbox_start
from tests.factories import ApiUser
from tests.fakes.engine import IMAGE, FakeEngine
from worker.context import WorkerContext
from worker.engine.protocol import ContainerRequest, ContainerState
from worker.sandboxes.container_spec import container_request
from worker.sandboxes.reconciler import reconcile


def start(context: WorkerContext, user: ApiUser) -> str:
    """Request a sandbox, as the API does."""
    with context.database.transaction() as session:
        spec = specs.get_spec(session, IMAGE)
        return sandbox_start.start(session, context.vault, owner_id=user.id, spec=spec, due_at=now()).sandbox.id


def container_request_of(context: WorkerContext, sandbox_id: str) -> ContainerRequest:
    """The request for a sandbox's container, as a worker sends it."""
    with context.database.reading() as session:
        spec = specs.get_spec(session, IMAGE)
    return container_request(row(context, sandbox_id), spec, installation=context.installation)


def set_desired(context: WorkerContext, sandbox_id: str, desired: Desired) -> None:
    """Set the desired state, as the API does."""
    with context.database.transaction() as session:
        desired_state.set_desired(session, session.get_one(Sandbox, sandbox_id), desired, due_at=now())


def row(context: WorkerContext, sandbox_id: str) -> Sandbox:
    with context.database.reading() as session:
        return session.get_one(Sandbox, sandbox_id)


def history(context: WorkerContext, sandbox_id: str) -> list[str]:
    with context.database.reading() as session:
        return [transition.to_status for transition in sandbox_queries.transitions(session, sandbox_id)]


def running(context: WorkerContext, user: ApiUser) -> str:
    sandbox_id = start(context, user)
    reconcile(context, sandbox_id)
    assert row(context, sandbox_id).status == Status.RUNNING
    return sandbox_id


def assert_reconciled(context: WorkerContext, sandbox_id: str) -> None:
    """No worker holds the row, nothing is due, and the newest generation is observed."""
    found = row(context, sandbox_id)
    assert (found.lease_owner, found.lease_until, found.due_at) == (None, None, None)
    assert found.observed_generation == found.generation


def container_runs(context: WorkerContext) -> bool:
    """Whether the engine has a running container, so that the next write is the final status."""
    assert isinstance(context.engine, FakeEngine)
    return any(found.state == ContainerState.RUNNING for found in context.engine.containers.values())


def before_next(engine: FakeEngine, verb: str, action: object) -> None:
    """Call `action` just before the engine's next call of the verb."""

    def act(_name: str) -> None:
        del engine.before[verb]
        action()  # type: ignore[operator]

    engine.before[verb] = act


def expire_lease(context: WorkerContext, sandbox_id: str) -> None:
    """Expire the lease."""
    with context.database.transaction() as session:
        session.execute(update(Sandbox).where(col(Sandbox.id) == sandbox_id).values(lease_until=now()))


def mark_due(context: WorkerContext, sandbox_id: str) -> None:
    with context.database.transaction() as session:
        session.execute(update(Sandbox).where(col(Sandbox.id) == sandbox_id).values(due_at=now()))


def assert_legal(context: WorkerContext, sandbox_id: str) -> None:
    """Every transition in the history is in the table of legal transitions."""
    with context.database.reading() as session:
        transitions = session.exec(select(SandboxTransition).where(SandboxTransition.sandbox_id == sandbox_id)).all()
    assert transitions
    assert all(
        transition.from_status is None or transition.to_status in TRANSITIONS[Status(transition.from_status)]
        for transition in transitions
    )
