"""What must be so after an operation, beside what the checker asks."""

from sqlalchemy import update
from sqlmodel import col, select

from shared.models import (
    Conversation,
    Event,
    Node,
    PendingMessage,
    Sandbox,
    StartTask,
)
from shared.states import NodeStatus, Reason, Stage, Status
from tests.drills.faults.given import ELSEWHERE, stages
from tests.drills.faults.requests import (
    CONVERSATIONS,
    EVENTS,
    SANDBOXES,
    SETTINGS,
    ask,
    converse,
    converse_untitled,
    delete_conversation,
    report,
    say,
    store_settings,
    store_tokens,
)
from tests.drills.faults.runner import Runner
from tests.drills.wishes import Verb
from tests.waiting import eventually
from worker.sandbox_container import container_name


def made_once(runner: Runner, key: str) -> None:
    """Asked again under the same key, the same sandbox is told of, and there is no other."""
    answer = ask(runner, "POST", SANDBOXES, Verb.START, key)
    assert answer is not None
    with runner.service.database.reading() as session:
        assert session.exec(select(Sandbox.id)).all() == [answer.json()["id"]]


def begun_once(runner: Runner, sandbox_id: str) -> None:
    """Asked again, it is the same start, and the conversation has its message once."""
    converse(runner, sandbox_id)
    _has_begun_once(runner, sandbox_id)


def begun_untitled_once(runner: Runner, sandbox_id: str) -> None:
    """The same of one whose title was to be made."""
    converse_untitled(runner, sandbox_id)
    _has_begun_once(runner, sandbox_id)


def _has_begun_once(runner: Runner, sandbox_id: str) -> None:
    eventually(runner.is_at_rest)
    assert stages(runner) == [Stage.READY]
    with runner.service.database.reading() as session:
        conversation_id = session.exec(select(Conversation.id)).one()
    messages = f"/workspace/conversations/{conversation_id}/messages"
    assert runner.engine.docker("exec", container_name(sandbox_id), "cat", messages) == "message\n"


def refused_once(runner: Runner, sandbox_id: str) -> None:
    """Asked again, it is the same start, which has failed, and left no conversation."""
    converse(runner, sandbox_id)
    eventually(runner.is_at_rest)
    assert stages(runner) == [Stage.ERROR]
    with runner.service.database.reading() as session:
        assert session.exec(select(Conversation.id)).all() == []


def forgotten(runner: Runner, sandbox_id: str) -> None:
    """Deleted again, it is gone, and the other one is as it was: for its owner and in its sandbox."""
    delete_conversation(runner, sandbox_id)
    eventually(runner.is_at_rest)
    with runner.service.database.reading() as session:
        [listed] = session.exec(select(Conversation.id).where(col(Conversation.listed))).all()
        [deleted] = session.exec(select(Conversation.id).where(~col(Conversation.listed))).all()
    answer = ask(runner, "DELETE", f"{CONVERSATIONS}/{deleted}")
    assert answer is not None
    assert answer.status_code == 200
    eventually(runner.is_at_rest)
    there = runner.engine.docker("exec", container_name(sandbox_id), "ls", "/workspace/conversations")
    assert there.split() == [listed]


def told_each_once(runner: Runner, sandbox_id: str) -> None:
    """Said again under the same keys, both are there once."""
    say(runner, sandbox_id)
    eventually(runner.is_at_rest)
    with runner.service.database.reading() as session:
        conversation_id = session.exec(select(Conversation.id)).one()
        assert session.exec(select(PendingMessage)).all() == []
    said = f"/workspace/conversations/{conversation_id}/said"
    assert runner.engine.docker("exec", container_name(sandbox_id), "cat", said).count("Hello") == 2


def cancelled(runner: Runner, sandbox_id: str) -> None:
    """Withdrawn, it is over and has left no conversation; if that was never heard, it has succeeded."""
    with runner.service.database.reading() as session:
        [task] = session.exec(select(StartTask)).all()
        listed = session.exec(select(Conversation.listed)).all()
    there = runner.engine.docker("exec", container_name(sandbox_id), "sh", "-c", "ls /workspace/conversations || true")
    if task.cancelled_at is None:
        assert (task.stage, listed) == (Stage.READY, [True])
    else:
        assert (task.stage, task.reason, listed) == (Stage.ERROR, Reason.CANCELLED, [])
        assert task.conversation_id not in there


def stored_once(runner: Runner, sandbox_id: str) -> None:
    """Reported again, each event is there once."""
    report(runner, sandbox_id)
    eventually(runner.is_at_rest)
    with runner.service.database.reading() as session:
        assert sorted(session.exec(select(Event.id)).all()) == sorted(event["id"] for event in EVENTS)
        assert session.exec(select(Conversation.title)).all() == ["A talk"]


def settings_stored(runner: Runner, _subject: str) -> None:
    """Stored again, they are there."""
    store_settings(runner)
    answer = ask(runner, "GET", "/api/settings")
    assert answer is not None
    assert answer.json()["max_iterations"] == SETTINGS["max_iterations"]


def tokens_stored(runner: Runner, _subject: str) -> None:
    """Stored again, they are there."""
    store_tokens(runner)
    answer = ask(runner, "GET", "/api/settings")
    assert answer is not None
    assert list(answer.json()["provider_tokens_set"]) == ["github"]


def moved_here(runner: Runner, sandbox_id: str) -> None:
    """The lost sandbox is known to be lost; it can be deleted from here."""
    here = runner.service.environment["AW_NODE"]
    with runner.service.database.transaction() as session:
        assert session.get_one(Sandbox, sandbox_id).status == Status.ERROR
        session.execute(update(Sandbox).where(col(Sandbox.id) == sandbox_id).values(node_id=here))
        session.execute(update(Node).where(col(Node.id) == ELSEWHERE).values(status=NodeStatus.READY, detail=None))
