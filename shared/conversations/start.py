"""Acceptance of start requests: one transaction that creates a start task, and the jobs to publish after it."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, or_
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from shared.changes import recorder as change_recorder
from shared.clock import now
from shared.conversations import queries as conversation_queries
from shared.conversations import quotas as conversation_quotas
from shared.conversations import start_tasks
from shared.crypto import Vault
from shared.errors import Conflict
from shared.ids import new_id
from shared.models import Conversation, Node, Sandbox, SandboxSpec, StartTask
from shared.models.conversations import UNFINISHED
from shared.nodes import placement
from shared.queue.jobs import Job, StartConversation
from shared.sandboxes import deadlines, desired_state, specs
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes import quotas as sandbox_quotas
from shared.sandboxes.access import Resumption
from shared.settings import NO_QUOTAS, Quotas
from shared.sql import locks
from shared.sql.statements import bind_values
from shared.states import Desired, Reason, Stage, Status
from shared.users import settings_store
from shared.users.settings import StoredSettings
from shared.warm_pool import start as sandbox_start

NO_MODEL = (
    "No language model is configured: store an llm_api_key with POST /api/settings, "
    "or an llm_base_url for a model that needs no key, and start again."
)
# Stored with the request and not shown: decisions at acceptance hold for all stages of the start.
OWN_FOLDER = {"own_folder": True}
# The branch is inherited from the parent. It is for a new clone only: an existing clone stays on its current branch.
KEEPS_BRANCH = {"keeps_branch": True}
# The fields that a request inherits from its parent conversation where it leaves them open.
INHERITED = ("sandbox_id", "llm_model", "selected_repository", "selected_branch", "git_provider")
# The limit of conversations in a sandbox: V1's max_num_conversations_per_sandbox.
MAX_CONVERSATIONS = 20


@dataclass(frozen=True)
class StartCommand:
    """A user's start request. `request` is the document that is shown and stored (wire contract, appendix B).

    The secrets are separate from it.
    """

    owner_id: str
    request: dict[str, Any]
    secrets: dict[str, str]
    # The time at which the sweep enqueues the work if the jobs are lost.
    due_at: datetime
    quotas: Quotas = NO_QUOTAS


@dataclass(frozen=True)
class Start:
    """The task that was accepted, the sandbox it will use, and the jobs to publish after the commit."""

    task: StartTask
    sandbox: Sandbox | None = None
    jobs: tuple[Job, ...] = ()
    # The sandboxes that are paused to make room for this one.
    paused: tuple[Sandbox, ...] = ()


def create_start_task(session: Session, vault: Vault, command: StartCommand) -> Start:
    """Accept a start request.

    If the same user is starting that conversation id already, the existing task is returned.

    Raises:
        NotFound: the parent or the sandbox does not belong to the user.
        Invalid: the sandbox is in ERROR.
        Conflict: the conversation id is taken, or the same user has requested it with other values.
        QuotaExceeded: the start needs a sandbox or a conversation beyond the user's quota.
    """
    max_conversations = command.quotas.stored.conversations
    if command.quotas or max_conversations:
        locks.lock_user(session, command.owner_id)
    if (earlier := _find_earlier(session, command)) is not None:
        return _repeat(session, earlier)
    if max_conversations:
        conversation_quotas.admit_start(session, command.owner_id, max_conversations)
    try:
        # All or nothing: another transaction may take the conversation id concurrently.
        with change_recorder.savepoint(session):
            return _begin(session, vault, command)
    except IntegrityError:
        if (earlier := _find_earlier(session, command)) is None:
            raise
        return _repeat(session, earlier)


def _find_earlier(session: Session, command: StartCommand) -> StartTask | None:
    conversation_id = _conversation_id(command)
    if conversation_id is None:
        return None
    task = start_tasks.find_for_conversation(session, conversation_id)
    taken = conversation_queries.find(session, conversation_id) is not None
    if taken if task is None else task.owner_id != command.owner_id:
        raise Conflict(f"there is a conversation with id {conversation_id} already")
    if task is not None and not _is_same_request(command.request, start_tasks.sent_request(task)):
        raise Conflict(f"conversation {conversation_id} was already started by another request")
    return task


def _is_same_request(request: dict[str, Any], stored: dict[str, Any]) -> bool:
    """Whether a request equals the stored one, in which fields that the request leaves open may be inherited."""
    open_names = INHERITED if request.get("parent_conversation_id") else ()
    return all(
        stored.get(name, value) == value or (value is None and name in open_names)
        for name, value in request.items()
        if name != "conversation_id"
    )


def _repeat(session: Session, task: StartTask) -> Start:
    return Start(task, session.get(Sandbox, task.sandbox_id) if task.sandbox_id else None)


def _begin(session: Session, vault: Vault, command: StartCommand) -> Start:
    request = _inherit(session, command)
    requested = _find_sandbox(session, command, request)
    settings = settings_store.load(session, vault, command.owner_id) or StoredSettings()
    if not settings_store.can_call(settings, request.get("llm_model") or settings.llm_model):
        sandbox_quotas.check_rate(session, command.owner_id, command.quotas)
        failed = {"stage": Stage.ERROR, "reason": Reason.LLM_KEY_MISSING, "detail": NO_MODEL}
        start = Start(_add_task(session, command, request, **failed))
        start_tasks.limit_failed(session, command.owner_id)
        return start
    target = requested or _choose_sandbox_or_spec(session, command, settings)
    if settings.sandbox_grouping_strategy in ORDERS:
        request |= OWN_FOLDER
    task = _add_task(
        session, command, request, stage=Stage.WORKING, due_at=command.due_at, secrets=_seal(vault, command)
    )
    sandbox, paused, jobs = _ready_sandbox(session, vault, command, target)
    task.sandbox_id, task.made_sandbox = sandbox.id, isinstance(target, SandboxSpec)
    if not _is_claimed(sandbox):
        jobs = (*jobs, StartConversation(task.id, sandbox.node_id))
    return Start(task, sandbox, jobs, tuple(paused))


def _is_claimed(sandbox: Sandbox) -> bool:
    """Whether the sandbox comes from the warm pool: its initialization enqueues the task when it runs."""
    return sandbox.boot_key is not None and sandbox.ready_at is None


def _inherit(session: Session, command: StartCommand) -> dict[str, Any]:
    """The request with its open fields inherited from the parent (wire contract 3.2, step 1)."""
    request = dict(command.request)
    parent_id = request.get("parent_conversation_id")
    if parent_id is None:
        return request
    parent = conversation_queries.get(session, parent_id, command.owner_id)
    inherited: dict[str, Any] = {"sandbox_id": parent.sandbox_id, "llm_model": parent.llm_model}
    if request.get("selected_repository") in (None, parent.selected_repository):
        inherited |= _repository_of(parent)  # a branch of another repository has no meaning in this one
    taken = {name: value for name, value in inherited.items() if request.get(name) is None}
    return request | taken | (KEEPS_BRANCH if taken.get("selected_branch") else {})


def _repository_of(parent: Conversation) -> dict[str, Any]:
    return {
        "selected_repository": parent.selected_repository,
        "selected_branch": parent.selected_branch,
        "git_provider": parent.git_provider,
    }


def _find_sandbox(session: Session, command: StartCommand, request: dict[str, Any]) -> Sandbox | None:
    if request.get("sandbox_id") is None:
        return None
    sandbox_quotas.lock_resumed(session, request["sandbox_id"], command.owner_id, command.quotas)
    sandbox = sandbox_queries.get(session, request["sandbox_id"], command.owner_id, lock=True)
    sandbox_queries.require_usable(sandbox)
    return sandbox


def _choose_sandbox_or_spec(session: Session, command: StartCommand, settings: StoredSettings) -> Sandbox | SandboxSpec:
    """The sandbox that the conversation joins, or the spec of the new one that it needs."""
    spec = specs.prefer_spec(session, settings.default_sandbox_spec_id)
    return _choose_sandbox(session, command.owner_id, spec.id, settings.sandbox_grouping_strategy) or spec


def _add_task(session: Session, command: StartCommand, request: dict[str, Any], **columns: Any) -> StartTask:
    task = StartTask(
        owner_id=command.owner_id,
        conversation_id=_conversation_id(command) or new_id(),
        sandbox_id=request.get("sandbox_id"),
        request=request,
        **columns,
    )
    session.add(task)
    session.flush()
    change_recorder.record_change(session, task)
    return task


def _ready_sandbox(
    session: Session, vault: Vault, command: StartCommand, target: Sandbox | SandboxSpec
) -> tuple[Sandbox, list[Sandbox], tuple[Job, ...]]:
    """The sandbox, those that are paused to make room for it, and the jobs of all of them."""
    owner_id, due_at, quotas = command.owner_id, command.due_at, command.quotas
    if isinstance(target, SandboxSpec):
        made = sandbox_start.start(session, vault, owner_id=owner_id, spec=target, due_at=due_at, quotas=quotas)
        made.sandbox.goes_with_conversations = True
        return made.sandbox, made.paused, made.jobs
    paused = sandbox_quotas.admit_resume(session, target, quotas, due_at=due_at) if quotas else []
    if target.desired == Desired.RUNNING and target.status != Status.PAUSED:
        deadlines.record_activity(session, target.id)
        return target, paused, ()
    desired_state.set_desired(session, target, Desired.RUNNING, due_at=due_at)
    return target, paused, Resumption(target, paused).jobs


def _seal(vault: Vault, command: StartCommand) -> str | None:
    return vault.encrypt(json.dumps(command.secrets)) if command.secrets else None


def _conversation_id(command: StartCommand) -> str | None:
    """The requested id without dashes. V1 shows dashes in this id only (wire contract, section 0)."""
    requested: str | None = command.request.get("conversation_id")
    return requested and requested.replace("-", "")


# --- the sandbox that a conversation joins (wire contract 2.1) --------------------------------------------------------


def _choose_sandbox(session: Session, owner_id: str, spec_id: str, strategy: str) -> Sandbox | None:
    """Choose and lock the running sandbox that the strategy puts first.

    The sandbox was made from that spec, its desired state is RUNNING, its node accepts sandboxes, and it has a free
    slot. The user's other starts wait until the transaction ends: two of them could take the same last slot.
    Call this function before a sandbox is locked.

    Returns:
        None if the conversation needs a new sandbox.
    """
    if strategy not in ORDERS:
        return None
    locks.lock_user(session, owner_id)
    fitting = _suitable(owner_id, spec_id)
    for sandbox_id in session.exec(fitting.order_by(*ORDERS[strategy])).all():
        # One lock at a time: the end of the savepoint releases a sandbox that does not fit.
        with suppress(_NoLongerSuitable), change_recorder.savepoint(session):
            return _lock_suitable(session, fitting, sandbox_id)
    return None


class _NoLongerSuitable(Exception):
    """The sandbox was paused, deleted or filled before it was locked."""


def _lock_suitable(session: Session, fitting: SelectOfScalar[str], sandbox_id: str) -> Sandbox:
    sandbox: Sandbox | None = session.scalars(sandbox_queries.LOCK, bind_values(sandbox_id=sandbox_id)).one_or_none()
    if sandbox is None or session.exec(fitting.where(Sandbox.id == sandbox_id)).first() is None:
        raise _NoLongerSuitable
    return sandbox


def _suitable(owner_id: str, spec_id: str) -> SelectOfScalar[str]:
    stays = or_(col(Sandbox.expires_at).is_(None), col(Sandbox.expires_at) > now())
    runs = (Sandbox.desired == Desired.RUNNING, Sandbox.status == Status.RUNNING, stays)
    owned = select(Sandbox.id).join(Node, col(Node.id) == col(Sandbox.node_id)).where(Sandbox.owner_id == owner_id)
    return owned.where(Sandbox.spec_id == spec_id, *runs, *placement.takes_sandboxes(), USED < MAX_CONVERSATIONS)


def _count(table: Any, *where: Any) -> Any:
    inside = select(func.count()).select_from(table).where(table.sandbox_id == Sandbox.id, *where)
    return inside.correlate(Sandbox).scalar_subquery()


# Conversations in a sandbox, with those being started.
USED = _count(Conversation, col(Conversation.listed)) + _count(StartTask, *UNFINISHED)
OLDEST = (col(Sandbox.created_at), col(Sandbox.id))
# The sort order of each of V1's strategies. Any other name, such as NO_GROUPING, groups nothing. V1 itself treats the
# oldest sandbox as the least recently used one (its defect 45).
ORDERS: Mapping[str, tuple[Any, ...]] = {
    "ADD_TO_ANY": OLDEST,
    "GROUP_BY_NEWEST": (col(Sandbox.created_at).desc(), col(Sandbox.id).desc()),
    "LEAST_RECENTLY_USED": (col(Sandbox.last_active_at), *OLDEST),
    "FEWEST_CONVERSATIONS": (USED, *OLDEST),
}
