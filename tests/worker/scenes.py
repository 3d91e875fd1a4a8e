"""What the tests of the worker begin with: sandboxes that run, starts that were asked for, jobs that are delivered."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from sqlmodel import Session, SQLModel, col, select, update

from shared.clock import after, now
from shared.conversation_starts import Wish, accept
from shared.database import Database
from shared.models import Conversation, Event, Sandbox, StartTask
from shared.statements import Rows
from shared.states import Desired, Reason, Stage, Status
from shared.store import conversations, sandboxes, secrets, specs, user_settings, wishes
from tests.doubles import PatientExecutor, RecordingPublisher
from tests.factories import Person
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.engine import IMAGE, FakeEngine
from worker.agent_lane import AgentLane
from worker.converge import converge
from worker.keeper import LeaseKeeper
from worker.parts import Parts
from worker.sandbox_container import container_name
from worker.tasks import WORK

INSTALLATION = "test-installation"
Row = TypeVar("Row", bound=SQLModel)

LLM_KEY = "sk-the-llm-key-0001"
TOKEN = "ghp_the-token-0002"
STORED = "the-stored-secret-0003"
ASKED = "the-asked-secret-0004"
MCP_KEY = "the-mcp-key-0005"
SEARCH_KEY = "tvly-the-search-key-0006"
SECRETS = (LLM_KEY, TOKEN, STORED, ASKED, MCP_KEY, SEARCH_KEY)

MCP = {"shttp_servers": [{"url": "https://mcp.example.org", "api_key": MCP_KEY}]}
SETTINGS = {
    "llm_model": "openai/demo",
    "llm_api_key": LLM_KEY,
    "search_api_key": SEARCH_KEY,
    "max_budget_per_task": 2.5,
    "git_user_name": "Alice",
    "git_user_email": "alice@example.org",
    "mcp_config": MCP,
}
MESSAGE = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}


def configure(parts: Parts, user: Person) -> None:
    """Store settings, a token and a secret of the user's."""
    with parts.database.transaction() as session:
        user_settings.change(session, parts.vault, user.id, SETTINGS)
        secrets.put_provider_tokens(session, parts.vault, user.id, {"github": {"token": TOKEN}})
        secrets.put_custom_secrets(session, parts.vault, user.id, {"STORED": {"secret": STORED}})


def store_settings(parts: Parts, user: Person, **settings: Any) -> None:
    """Change these of the user's settings."""
    with parts.database.transaction() as session:
        user_settings.change(session, parts.vault, user.id, settings)


def ask(parts: Parts, user: Person, sandbox_id: str | None = None, **request: Any) -> str:
    """Ask for a conversation, as the API does; the jobs are lost. Returns the task's id."""
    asked = {"initial_message": MESSAGE, **request, "sandbox_id": sandbox_id}
    with parts.database.transaction() as session:
        wish_ = Wish(user.id, asked, {"ASKED": ASKED}, due_at=after(parts.shared.republish_seconds))
        return accept(session, parts.vault, wish_).task.id


def start(parts: Parts, user: Person) -> str:
    """Wish for a sandbox, as the API does."""
    with parts.database.transaction() as session:
        spec = specs.get_spec(session, IMAGE)
        return sandboxes.create(session, parts.vault, owner_id=user.id, spec=spec, due_at=now()).id


def warm(parts: Parts, seconds: float = 0) -> str:
    """A member of the pool that was wished for so long ago."""
    with parts.database.transaction() as session:
        spec = specs.get_spec(session, IMAGE)
        member = sandboxes.create(session, parts.vault, owner_id=None, spec=spec, due_at=now())
        member.created_at = after(-seconds)
        return member.id


def running(parts: Parts, user: Person) -> str:
    """A sandbox that runs."""
    sandbox_id = start(parts, user)
    converge(parts, sandbox_id)
    assert row(parts, Sandbox, sandbox_id).status == Status.RUNNING
    return sandbox_id


def wish(parts: Parts, sandbox_id: str, desired: Desired) -> None:
    """Wish for another state, as the API does."""
    with parts.database.transaction() as session:
        wishes.wish(session, session.get_one(Sandbox, sandbox_id), desired, due_at=now())


def delete(parts: Parts, sandbox_id: str) -> None:
    """Wish a sandbox away, and have it gone."""
    wish(parts, sandbox_id, Desired.DELETED)
    converge(parts, sandbox_id)
    assert row(parts, Sandbox, sandbox_id).status == Status.DELETED


def deliver(parts: Parts) -> None:
    """Take the looks, carry out what was published, and what comes of that, until nothing is left."""
    assert isinstance(parts.publisher, RecordingPublisher)
    assert isinstance(parts.looks, PatientExecutor)
    while parts.looks.waiting or parts.publisher.jobs:
        if parts.looks.waiting:
            parts.looks.run()
            continue
        job = parts.publisher.jobs.pop(0)
        WORK[type(job)](parts, job.subject)


def another(parts: Parts) -> Parts:
    """A second worker on the same node."""
    return replace(parts, keeper=LeaseKeeper(parts.database, "worker-2", 15), lane=AgentLane(32))


def row(parts: Parts, table: type[Row], row_id: str) -> Row:
    """The row as it is now."""
    with parts.database.reading() as session:
        return session.get_one(table, row_id)


def change(parts: Parts, table: type[SQLModel], row_id: str, **values: Any) -> None:
    """Write columns past every rule."""
    with parts.database.transaction() as session:
        session.execute(update(table).where(col(table.id) == row_id).values(**values))  # type: ignore[attr-defined]


def assert_at_rest(found: Sandbox | StartTask | Conversation) -> None:
    """Nobody holds the row, and it wants nothing."""
    assert (found.lease_owner, found.lease_until, found.due_at) == (None, None, None)


def server_of(engine: FakeEngine, sandbox_id: str) -> FakeAgentServer:
    """The agent server in a sandbox."""
    return engine.servers[container_name(sandbox_id)]


def task_of(parts: Parts, task_id: str) -> StartTask:
    """The start task as it is now."""
    return row(parts, StartTask, task_id)


def conversation_of(parts: Parts, task_id: str) -> Conversation | None:
    """The row of the conversation that a task starts."""
    with parts.database.reading() as session:
        return conversations.find(session, task_of(parts, task_id).conversation_id)


def assert_failed(parts: Parts, task_id: str, reason: Reason, words: str = "") -> StartTask:
    """The task is over, its secrets are gone, and so is every trace of its conversation."""
    task = task_of(parts, task_id)
    assert (task.stage, task.reason, task.secrets) == (Stage.ERROR, reason, None)
    assert words in (task.detail or "")
    assert_at_rest(task)
    assert conversation_of(parts, task_id) is None
    with parts.database.reading() as session:
        assert session.exec(select(Event).where(Event.conversation_id == task.conversation_id)).all() == []
    return task


class PunctuatedDatabase(Database):
    """A database with a point before and after each of its transactions and looks, where a test can step in.

    `act` is called at point number `at`; `passed` counts the points so far.
    """

    def __init__(self, database: Database, at: int, act: Callable[[], None]) -> None:
        self.engine = database.engine
        self.passed = 0
        self._database, self._at, self._act = database, at, act

    @contextmanager
    def transaction(self, *, needs_place: bool = False) -> Iterator[Session]:
        self.point()
        with self._database.transaction(needs_place=needs_place) as session:
            yield session
        self.point()

    def carry_out(self, statement: Any, values: Mapping[str, Any]) -> Rows:
        self.point()
        rows = self._database.carry_out(statement, values)
        self.point()
        return rows

    def fetch(self, statement: Any, values: Mapping[str, Any], *, plan_anew: bool = False) -> Rows:
        self.point()
        rows = self._database.fetch(statement, values, plan_anew=plan_anew)
        self.point()
        return rows

    @contextmanager
    def reading(self) -> Iterator[Session]:
        self.point()
        with self._database.reading() as session:
            yield session
        self.point()

    def point(self) -> None:
        """Pass a point."""
        self.passed += 1
        if self.passed - 1 == self._at:
            self._act()


def punctuated(parts: Parts, at: int, act: Callable[[], None]) -> tuple[Parts, PunctuatedDatabase]:
    """The same worker, with `act` called at one point of its work with the store."""
    database = PunctuatedDatabase(parts.database, at, act)
    return replace(parts, database=database), database
