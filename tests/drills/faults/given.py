"""What operations begin with."""

from datetime import timedelta

from sqlalchemy import update
from sqlmodel import col, select

from shared.clock import now
from shared.ids import new_id
from shared.models import (
    Conversation,
    PendingMessage,
    Sandbox,
    SandboxLeftover,
    SandboxTransition,
    StartTask,
)
from shared.states import NodeStatus, Stage, Status
from shared.store import nodes, specs
from tests.drills.faults.requests import HELLO, converse, converse_also, delete_conversation, say, tell_of, use_key_at
from tests.drills.faults.runner import Runner
from tests.drills.faults.specs import (
    FORGETFUL_IMAGE,
    FRAGILE_IMAGE,
    POOLED_IMAGE,
    PULLED,
    REFUSING_IMAGE,
    TALKING_IMAGE,
)
from tests.drills.wishes import Verb
from tests.factories import make_node, make_sandbox
from tests.services.engine import TINY_IMAGE
from tests.waiting import eventually
from worker.sandbox_container import container_name

ELSEWHERE = "node-elsewhere"
LONG = timedelta(days=1)


def running(runner: Runner, image: str = TINY_IMAGE) -> str:
    """A sandbox that runs."""
    sandbox_id = runner.client.start(image)
    assert sandbox_id is not None
    runner.await_status(sandbox_id, Status.RUNNING)
    return sandbox_id


def pooled(runner: Runner) -> str:
    """A sandbox that waits in a pool for whoever starts one."""
    with runner.released():
        want_pool(runner, 1)
        eventually(lambda: _members(runner) == [True])
    return ""


def want_pool(runner: Runner, size: int) -> None:
    """Let so many sandboxes wait."""
    with runner.service.database.transaction() as session:
        specs.change(session, POOLED_IMAGE, {"warm_target": size, "warm_most": size})


def _members(runner: Runner) -> list[bool]:
    """Whether each member of the pool is ready, and nobody at it."""
    with runner.service.database.reading() as session:
        rows = session.exec(select(Sandbox).where(col(Sandbox.owner_id).is_(None))).all()
    return [(row.status, row.due_at, row.lease_until) == (Status.RUNNING, None, None) for row in rows]


def paused(runner: Runner) -> str:
    """A sandbox that is frozen."""
    sandbox_id = running(runner)
    runner.client.pause(sandbox_id)
    runner.await_status(sandbox_id, Status.PAUSED)
    return sandbox_id


def not_pulled(runner: Runner) -> str:
    """An engine that has not pulled the image yet."""
    image = f"{runner.registry}/{PULLED}"
    if runner.engine.docker("images", "--quiet", image):
        runner.engine.docker("rmi", image)
    return image


def stopped(runner: Runner) -> str:
    """A sandbox whose container was stopped behind our back, which is known."""
    return _harmed(runner, "kill")


def removed(runner: Runner) -> str:
    """A sandbox whose container was removed behind our back, which is known."""
    return _harmed(runner, "rm", "--force")


def fragile(runner: Runner) -> str:
    """A sandbox whose container may be harmed."""
    return running(runner, FRAGILE_IMAGE)


def talking(runner: Runner) -> str:
    """A sandbox that holds conversations."""
    return running(runner, TALKING_IMAGE)


def refusing(runner: Runner) -> str:
    """A sandbox that refuses conversations."""
    return running(runner, REFUSING_IMAGE)


def forgetful(runner: Runner) -> str:
    """A sandbox that loses the first message of each conversation."""
    return running(runner, FORGETFUL_IMAGE)


def conversing(runner: Runner) -> str:
    """A sandbox with a conversation at work in it."""
    sandbox_id = talking(runner)
    converse(runner, sandbox_id)
    eventually(lambda: stages(runner) == [Stage.READY] and runner.is_at_rest())
    return sandbox_id


def conversing_twice(runner: Runner) -> str:
    """A sandbox with two conversations in it, one of which stays."""
    sandbox_id = conversing(runner)
    converse_also(runner, sandbox_id)
    eventually(lambda: stages(runner) == [Stage.READY] * 2 and runner.is_at_rest())
    return sandbox_id


def remembering(runner: Runner) -> str:
    """The same, frozen, and one of them was deleted."""
    sandbox_id = conversing_twice(runner)
    runner.client.pause(sandbox_id)
    runner.await_status(sandbox_id, Status.PAUSED)
    delete_conversation(runner, sandbox_id)
    eventually(runner.is_at_rest)
    return sandbox_id


def unheard(runner: Runner) -> str:
    """The same sandbox, frozen, with two messages that nobody could be told."""
    sandbox_id = conversing(runner)
    runner.client.pause(sandbox_id)
    runner.await_status(sandbox_id, Status.PAUSED)
    say(runner, sandbox_id)
    eventually(runner.is_at_rest)
    return sandbox_id


def half_told(runner: Runner) -> str:
    """The same, and the first was told by a worker who died before it could write that down."""
    sandbox_id = unheard(runner)
    runner.client.resume(sandbox_id)
    eventually(lambda: runner.is_at_rest() and not _pending(runner))
    runner.client.pause(sandbox_id)
    runner.await_status(sandbox_id, Status.PAUSED)
    with runner.service.database.transaction() as session:
        [talk] = session.exec(select(Conversation)).all()
        talk.awaits_sandbox = True
        session.add(PendingMessage(conversation_id=talk.id, content=HELLO, attempted_at=now(), newest_before="said-1"))
    return sandbox_id


def _pending(runner: Runner) -> bool:
    with runner.service.database.reading() as session:
        return session.exec(select(PendingMessage.id)).first() is not None


def awaited(runner: Runner) -> str:
    """A sandbox that runs, and a start in it that nobody has begun yet: the operation holds it back."""
    sandbox_id = talking(runner)
    converse(runner, sandbox_id)
    return sandbox_id


def spent(runner: Runner) -> str:
    """A sandbox with a conversation at work in it that has spent its budget."""
    sandbox_id = conversing(runner)
    with runner.service.database.transaction() as session:
        session.execute(
            update(Conversation).values(
                max_budget=1, metrics={"accumulated_cost": 2}, execution_status="running", title_settled=False
            )
        )
    return sandbox_id


def waiting(runner: Runner) -> str:
    """A sandbox that was wished for while no node took any."""
    with runner.service.database.transaction() as session:
        nodes.cordon(session, runner.service.environment["AW_NODE"])
    sandbox_id = runner.client.start(TINY_IMAGE)
    assert sandbox_id is not None
    return sandbox_id


def lost(runner: Runner) -> str:
    """A sandbox on a node that has been silent for long."""
    make_node(runner.service.database, ELSEWHERE, heartbeat_at=now() - LONG)
    return _settled(runner, Status.STARTING, Status.RUNNING)


def moved_away(runner: Runner) -> str:
    """A container of a sandbox that was made anew on another node and deleted there."""
    make_node(runner.service.database, ELSEWHERE, status=NodeStatus.CORDONED)
    sandbox_id = _settled(runner, Status.STARTING, Status.DELETING, Status.DELETED)
    here = runner.service.environment["AW_NODE"]
    with runner.service.database.transaction() as session:
        session.add(SandboxLeftover(node_id=here, sandbox_id=sandbox_id))
    return sandbox_id


def unused(runner: Runner) -> str:
    """A key that was not used yet."""
    use_key_at(runner, None)
    return ""


def name_key(_runner: Runner) -> str:
    """A key for requests that are to be carried out once."""
    return new_id()


def no_worker(runner: Runner) -> str:
    """No worker."""
    runner.service.kill("worker")
    return ""


def stages(runner: Runner) -> list[str]:
    with runner.service.database.reading() as session:
        return list(session.exec(select(StartTask.stage)).all())


def _harmed(runner: Runner, *command: str) -> str:
    sandbox_id = fragile(runner)
    runner.engine.docker(*command, container_name(sandbox_id))
    with runner.released():
        runner.await_status(sandbox_id, Status.ERROR)
        eventually(runner.is_at_rest)
    return sandbox_id


def _settled(runner: Runner, *path: Status) -> str:
    """A sandbox elsewhere that has come this way."""
    sandbox = make_sandbox(
        runner.service.database,
        runner.client.person,
        status=path[-1],
        spec_id=FRAGILE_IMAGE,
        node_id=ELSEWHERE,
    )
    with runner.service.database.transaction() as session:
        for before, after in zip((None, *path), path, strict=False):
            session.add(SandboxTransition(sandbox_id=sandbox.id, from_status=before, to_status=after))
    tell_of(runner, Verb.START, sandbox.id)
    if path[-1] == Status.DELETED:
        tell_of(runner, Verb.DELETE, sandbox.id)
    return sandbox.id
