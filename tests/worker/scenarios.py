"""Initial states of the worker's tests: running sandboxes, requested starts, delivered jobs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from sqlmodel import Session, SQLModel, col, select, update

from shared.clock import after, now
from shared.conversations import queries as conversation_queries
from shared.conversations.start import StartCommand, create_start_task
from shared.db.database import Database
from shared.models import Conversation, Event, Sandbox, StartTask
from shared.sandboxes import desired_state, specs
from shared.sql.statements import Rows
from shared.states import Desired, Reason, Stage, Status
from shared.users import secrets, settings_store
from shared.warm_pool import start as sandbox_start
from tests.doubles import ManualExecutor, RecordingPublisher
from tests.factories import ApiUser
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.engine import IMAGE, FakeEngine
from worker.context import Lane, WorkerContext
from worker.lease_renewer import LeaseRenewer
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile
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


def configure(context: WorkerContext, user: ApiUser) -> None:
    """Store settings, a token and a secret of the user."""
    with context.database.transaction() as session:
        settings_store.change(session, context.vault, user.id, SETTINGS)
        secrets.put_provider_tokens(session, context.vault, user.id, {"github": {"token": TOKEN}})
        secrets.put_custom_secrets(session, context.vault, user.id, {"STORED": {"secret": STORED}})


def store_settings(context: WorkerContext, user: ApiUser, **settings: Any) -> None:
    """Change settings of the user."""
    with context.database.transaction() as session:
        settings_store.change(session, context.vault, user.id, settings)


def request_start(context: WorkerContext, user: ApiUser, sandbox_id: str | None = None, **request: Any) -> str:
    """Request a conversation like the API does, without publishing the jobs, and return the start task's id."""
    body = {"initial_message": MESSAGE, **request, "sandbox_id": sandbox_id}
    with context.database.transaction() as session:
        command = StartCommand(user.id, body, {"ASKED": ASKED}, due_at=after(context.shared.republish_seconds))
        return create_start_task(session, context.vault, command).task.id


def start(context: WorkerContext, user: ApiUser) -> str:
    """Create a sandbox row like the API does."""
    with context.database.transaction() as session:
        spec = specs.get_spec(session, IMAGE)
        return sandbox_start.start(session, context.vault, owner_id=user.id, spec=spec, due_at=now()).sandbox.id


def warm(context: WorkerContext, seconds: float = 0) -> str:
    """Create a warm sandbox row that is `seconds` old."""
    with context.database.transaction() as session:
        spec = specs.get_spec(session, IMAGE)
        sandbox = sandbox_start.start(session, context.vault, owner_id=None, spec=spec, due_at=now()).sandbox
        sandbox.created_at = after(-seconds)
        return sandbox.id


def claim(context: WorkerContext, owner: ApiUser) -> str:
    """Start a sandbox for its owner, from the warm pool if a warm one is ready."""
    with context.database.transaction() as session:
        spec = specs.get_spec(session, IMAGE)
        spec.warm_most = 1
        return sandbox_start.start(session, context.vault, owner_id=owner.id, spec=spec, due_at=now()).sandbox.id


def running(context: WorkerContext, user: ApiUser) -> str:
    """Create a sandbox that runs."""
    sandbox_id = start(context, user)
    reconcile(context, sandbox_id)
    assert row(context, Sandbox, sandbox_id).status == Status.RUNNING
    return sandbox_id


def set_desired(context: WorkerContext, sandbox_id: str, desired: Desired) -> None:
    """Set the desired state like the API does."""
    with context.database.transaction() as session:
        desired_state.set_desired(session, session.get_one(Sandbox, sandbox_id), desired, due_at=now())


def delete(context: WorkerContext, sandbox_id: str) -> None:
    """Delete a sandbox, and reconcile it."""
    set_desired(context, sandbox_id, Desired.DELETED)
    reconcile(context, sandbox_id)
    assert row(context, Sandbox, sandbox_id).status == Status.DELETED


def deliver(context: WorkerContext) -> None:
    """Run the status checks, the published jobs and all that follow from them."""
    assert isinstance(context.publisher, RecordingPublisher)
    assert isinstance(context.status_checks, ManualExecutor)
    while context.status_checks.waiting or context.publisher.jobs:
        if context.status_checks.waiting:
            context.status_checks.run()
            continue
        job = context.publisher.jobs.pop(0)
        WORK[type(job)](context, job.subject)


def another(context: WorkerContext) -> WorkerContext:
    """Return the context of a second worker on the same node."""
    return replace(context, renewer=LeaseRenewer(context.database, "worker-2", 15), agents=Lane(16), boots=Lane(32))


def row(context: WorkerContext, table: type[Row], row_id: str) -> Row:
    """Read the row."""
    with context.database.reading() as session:
        return session.get_one(table, row_id)


def change(context: WorkerContext, table: type[SQLModel], row_id: str, **values: Any) -> None:
    """Write columns without any of the service's checks."""
    with context.database.transaction() as session:
        session.execute(update(table).where(col(table.id) == row_id).values(**values))  # type: ignore[attr-defined]


def assert_at_rest(found: Sandbox | StartTask | Conversation) -> None:
    """Assert that the row is neither leased nor due."""
    assert (found.lease_owner, found.lease_until, found.due_at) == (None, None, None)


def server_of(engine: FakeEngine, sandbox_id: str) -> FakeAgentServer:
    """Return the agent server of a sandbox."""
    return engine.servers[container_name(sandbox_id)]


def task_of(context: WorkerContext, task_id: str) -> StartTask:
    """Read the start task."""
    return row(context, StartTask, task_id)


def conversation_of(context: WorkerContext, task_id: str) -> Conversation | None:
    """Read the row of the conversation that a task starts."""
    with context.database.reading() as session:
        return conversation_queries.find(session, task_of(context, task_id).conversation_id)


def assert_failed(context: WorkerContext, task_id: str, reason: Reason, words: str = "") -> StartTask:
    """Assert that the task has failed, and that its secrets and all rows of its conversation are deleted."""
    task = task_of(context, task_id)
    assert (task.stage, task.reason, task.secrets) == (Stage.ERROR, reason, None)
    assert words in (task.detail or "")
    assert_at_rest(task)
    assert conversation_of(context, task_id) is None
    with context.database.reading() as session:
        assert session.exec(select(Event).where(Event.conversation_id == task.conversation_id)).all() == []
    return task


class HookedDatabase(Database):
    """Database with a point before and after each transaction and read, where a test can interfere.

    `act` is called at point number `at`; `passed` counts the points so far.
    """

    def __init__(self, database: Database, at: int, act: Callable[[], None]) -> None:
        self.engine = database.engine
        self.passed = 0
        self._database, self._at, self._act = database, at, act

    @contextmanager
    def transaction(self, *, may_place: bool = False) -> Iterator[Session]:
        self.point()
        with self._database.transaction(may_place=may_place) as session:
            yield session
        self.point()

    def execute_and_commit(self, statement: Any, values: Mapping[str, Any]) -> Rows:
        self.point()
        rows = self._database.execute_and_commit(statement, values)
        self.point()
        return rows

    def fetch(self, statement: Any, values: Mapping[str, Any], *, custom_plan: bool = False) -> Rows:
        self.point()
        rows = self._database.fetch(statement, values, custom_plan=custom_plan)
        self.point()
        return rows

    @contextmanager
    def reading(self) -> Iterator[Session]:
        self.point()
        with self._database.reading() as session:
            yield session
        self.point()

    def point(self) -> None:
        """Count a point, and call `act` if it is the chosen one."""
        self.passed += 1
        if self.passed - 1 == self._at:
            self._act()


def hooked_context(context: WorkerContext, at: int, act: Callable[[], None]) -> tuple[WorkerContext, HookedDatabase]:
    """Return a context of the same worker that calls `act` at one point of its database access."""
    database = HookedDatabase(context.database, at, act)
    return replace(context, database=database), database
