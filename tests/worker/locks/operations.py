"""All operations of API, worker and CLI that take more than one lock."""

from collections.abc import Callable
from functools import partial
from typing import Any

from sqlmodel import Session

from shared.clock import after, now
from shared.conversations import deletion as conversation_deletion
from shared.conversations import pending_messages, shared_clones, start_tasks, webhook_ingest
from shared.conversations import queries as conversation_queries
from shared.conversations import start as conversation_start
from shared.conversations.start import StartCommand
from shared.conversations.webhook_reports import read_event
from shared.ids import new_id
from shared.leasing import renewals, waiters
from shared.models import Conversation, Node, Sandbox, StartTask
from shared.nodes import placement
from shared.nodes import registry as node_registry
from shared.sandboxes import access as sandbox_access
from shared.sandboxes import deadlines, desired_state, drain, failover, quarantine, quotas, rescheduling, specs
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes import status as sandbox_status
from shared.sandboxes.failover import LeaseRequest, LostNode
from shared.sandboxes.status import ObservedState
from shared.settings import QuotaPolicy, Quotas
from shared.sql import locks
from shared.states import Desired, PauseKind, Reason, Stage, Status
from shared.users import api_keys, device_authorizations, settings_store
from shared.warm_pool import pool as warm_pool
from shared.warm_pool import start as sandbox_start
from tests.factories import VAULT
from tests.fakes.engine import IMAGE
from tests.worker.locks.contended_rows import CLONE, DEAD, LOST, SECOND, UNKNOWN, ContendedRows
from worker.conversations import deletion, refresh
from worker.conversations.start import ConversationStart
from worker.conversations.start_inputs import load_inputs
from worker.loops import quarantine as quarantine_loop
from worker.loops.sweep import sweep
from worker.loops.warm_pool import reconcile_pools

LIMITS = Quotas(running=3, policy=QuotaPolicy.PAUSE_OLDEST)
Operation = Callable[[ContendedRows], Any]
Function = Callable[..., Any]


def create(session: Session, rows: ContendedRows) -> None:
    spec = specs.get_spec(session, IMAGE)
    locks.lock_user(session, rows.bob.id)
    quotas.admit_create(session, rows.bob.id, LIMITS, spec=spec, due_at=now())
    # Without an owner, because an owner's start would claim one of the warm sandboxes.
    sandbox_start.start(session, VAULT, owner_id=None, spec=spec, due_at=after(9))


def create_cold(session: Session, _rows: ContendedRows) -> None:
    """Create as `create` does, but without a quota, so that nothing locks the spec before."""
    sandbox_start.start(session, VAULT, owner_id=None, spec=specs.get_spec(session, IMAGE), due_at=after(9))


def make_warm(session: Session, _rows: ContendedRows) -> None:
    warm_pool.start_warm_sandbox(session, VAULT, IMAGE, boots=9, due_at=after(9))


def claim_or_create(session: Session, rows: ContendedRows) -> None:
    sandbox_start.start(session, VAULT, owner_id=rows.bob.id, spec=specs.get_spec(session, IMAGE), due_at=after(9))


def claim(rows: ContendedRows) -> None:
    sandbox_start.start_in_one_statement(
        rows.database, VAULT, owner_id=rows.bob.id, spec_id=IMAGE, due_at=after(9), own_deadlines={}
    )


def remove_warm(session: Session, rows: ContendedRows) -> None:
    warm_pool.retire(session, [rows.ids[f"warm {number}"] for number in (2, 1, 0)], due_at=now())


def change_own_deadlines(session: Session, rows: ContendedRows) -> None:
    sandbox = sandbox_queries.get(session, rows.ids["one"], rows.alice.id, lock=True)
    deadlines.set_own(session, sandbox, {"freeze_after_seconds": 60})


def resume(session: Session, rows: ContendedRows) -> None:
    sandbox_access.resume(session, rows.ids["paused"], rows.alice.id, LIMITS, due_at=now())


def set_desired(rows: ContendedRows, desired: Desired) -> None:
    desired_state.set_desired_and_commit(rows.database, rows.ids["two"], rows.alice.id, desired, due_at=now())


def start(
    session: Session, rows: ContendedRows, *, owner: str, sandbox: str | None = None, limits: Quotas = LIMITS
) -> None:
    request = {"sandbox_id": rows.ids[sandbox] if sandbox else None}
    command = StartCommand(getattr(rows, owner).id, request, {}, after(9), limits)
    conversation_start.create_start_task(session, VAULT, command)


def delete_conversation(session: Session, rows: ContendedRows) -> None:
    conversation_deletion.delete_conversation(session, rows.ids["parent"], rows.alice.id, due_at=now())


def report(session: Session, rows: ContendedRows) -> None:
    event = {"id": new_id(), "kind": "MessageEvent", "timestamp": now().isoformat(), "source": "agent"}
    sandbox = rows.read(Sandbox, "one")
    webhook_ingest.record_events(session, sandbox, rows.ids["parent"], [read_event(event)], due_at=now())


def add_message(session: Session, rows: ContendedRows, *, conversation_id: str) -> None:
    pending_messages.add(session, rows.ids[conversation_id], rows.alice.id, [], due_at=now())


def continue_later(session: Session, rows: ContendedRows) -> None:
    running = [rows.ids[name] for name in ("unlisted", "parent", "orphan")]
    conversation_queries.continue_later(session, rows.read(Sandbox, "one"), running)


def rename(session: Session, rows: ContendedRows) -> None:
    conversation_queries.change(session, rows.ids["parent"], rows.alice.id, {"title": new_id()})


def rename_start(session: Session, rows: ContendedRows) -> None:
    start_tasks.rename(session, rows.ids["unlisted"], rows.alice.id, new_id())


def write_title(rows: ContendedRows) -> None:
    refresh._write_title(rows.context, rows.read(Conversation, "parent"), new_id())


def delete_from_agent_server(rows: ContendedRows) -> None:
    deletion.delete_from_agent_server(rows.context, rows.read(Conversation, "deleted"))


def cancel(session: Session, rows: ContendedRows) -> None:
    start_tasks.cancel(session, rows.ids["ending"], rows.alice.id, due_at=now())


def begin_conversation(rows: ContendedRows) -> None:
    task = rows.read(StartTask, "beginning")
    inputs = load_inputs(rows.context, task, rows.read(Sandbox, "one"))
    ConversationStart(rows.context, task)._enter(Stage.STARTING_CONVERSATION, inputs)


def finish_start(rows: ContendedRows) -> None:
    ConversationStart(rows.context, rows.read(StartTask, "ending"))._finish()


def fail_start(rows: ContendedRows) -> None:
    ConversationStart(rows.context, rows.read(StartTask, "failing"))._fail(Reason.CANCELLED, "cancelled")


def write_status(session: Session, rows: ContendedRows, *, sandbox: str, state: ObservedState) -> None:
    row = rows.read(Sandbox, sandbox)
    sandbox_status.set_status(session, row, state, observed_generation=row.generation)
    if state.status == Status.RUNNING:
        placement.record_result(session, row)
    waiters.enqueue_waiters(session, row.id, now())


def reschedule(session: Session, rows: ContendedRows) -> None:
    rescheduling.reschedule(session, rows.read(Sandbox, "refused"), "no", due_at=now())


def fail_over(session: Session, rows: ContendedRows, *, sandbox: str) -> None:
    lost = LostNode(LOST, session.get_one(Node, LOST).heartbeat_at)
    done = failover.fail_over(session, lost, rows.ids[sandbox], LeaseRequest("w", 5, now()))
    if done is not None and done.moved_to is not None:
        conversation_queries.end_lost_runs(session, rows.ids[sandbox])


def renew(session: Session, rows: ContendedRows) -> None:
    fences = {rows.ids[name]: 0 for name in ("held", "three", "one")}
    renewals.renew(session, Sandbox, fences, 10)


def free(session: Session, _rows: ContendedRows) -> None:
    table: Any
    for table in (Sandbox, StartTask, Conversation):
        renewals.expire_leases_of(session, table, DEAD, now())


def change_settings(session: Session, rows: ContendedRows) -> None:
    settings_store.change(session, VAULT, rows.alice.id, {"llm_model": new_id()})


def set_branch(session: Session, rows: ContendedRows) -> None:
    shared_clones.set_branch(session, rows.read(StartTask, "ending"), CLONE, new_id())


def keep_unknown(rows: ContendedRows) -> None:
    quarantine_loop._keep(rows.context, [*UNKNOWN[1:], "aw-new", "aw-other"])


def approve_unknown(session: Session, rows: ContendedRows) -> None:
    quarantine.approve(session, rows.context.settings.node, UNKNOWN[::-1])


def create_key(session: Session, rows: ContendedRows) -> None:
    api_keys.create_own_key(session, VAULT, rows.alice.id, "another", None, rows.ids["key"])


def revoke_key(session: Session, rows: ContendedRows) -> None:
    api_keys.revoke_own_key(session, rows.alice.id, rows.ids["key"])


def approve_device(session: Session, rows: ContendedRows) -> None:
    code, key_id = rows.ids["code of a device"], rows.ids["key"]
    device_authorizations.decide(session, VAULT, code, key_id, approve=True)


def collect_key(session: Session, rows: ContendedRows) -> None:
    device_authorizations.poll(session, VAULT, rows.ids["approved device"])


def in_transaction(function: Function, **options: Any) -> Operation:
    def act(rows: ContendedRows) -> None:
        with rows.database.transaction() as session:
            function(session, rows, **options)

    return act


PAUSED = ObservedState(Status.PAUSED, pause_kind=PauseKind.FROZEN)
OPERATIONS: dict[str, Operation] = {
    "create": in_transaction(create),
    "create without a quota": in_transaction(create_cold),
    "claim or create": in_transaction(claim_or_create),
    "claim": claim,
    "make a warm sandbox": in_transaction(make_warm),
    "reconcile pools": lambda rows: reconcile_pools(rows.context),
    "remove warm sandboxes": in_transaction(remove_warm),
    "change a spec": in_transaction(lambda session, _: specs.change(session, IMAGE, {"cpus": 1.0})),
    "set a spec's deadlines": in_transaction(
        lambda session, _: specs.set_deadlines(session, IMAGE, {"freeze_after_seconds": 600})
    ),
    "change own deadlines": in_transaction(change_own_deadlines),
    "resume": in_transaction(resume),
    "pause": partial(set_desired, desired=Desired.PAUSED),
    "delete": partial(set_desired, desired=Desired.DELETED),
    "start in a sandbox": in_transaction(start, owner="alice", sandbox="paused"),
    "start in any sandbox": in_transaction(start, owner="alice"),
    "start in a new sandbox": in_transaction(start, owner="bob"),
    "start without quotas": in_transaction(start, owner="alice", sandbox="paused", limits=Quotas()),
    "delete a conversation": in_transaction(delete_conversation),
    "report": in_transaction(report),
    "message": in_transaction(add_message, conversation_id="parent"),
    "message to a starting conversation": in_transaction(add_message, conversation_id="unlisted"),
    "continue later": in_transaction(continue_later),
    "rename": in_transaction(rename),
    "rename a start": in_transaction(rename_start),
    "write a title": write_title,
    "delete from an agent server": delete_from_agent_server,
    "cancel a start": in_transaction(cancel),
    "begin a conversation": begin_conversation,
    "finish a start": finish_start,
    "fail a start": fail_start,
    "write a status": in_transaction(write_status, sandbox="one", state=PAUSED),
    "write a status and record the result": in_transaction(
        write_status, sandbox="proven", state=ObservedState(Status.RUNNING)
    ),
    "reschedule": in_transaction(reschedule),
    "mark lost": in_transaction(fail_over, sandbox="lost"),
    "move from a lost node": in_transaction(fail_over, sandbox="resumed"),
    "sweep": lambda rows: sweep(rows.context),
    "send a heartbeat": in_transaction(
        lambda session, _: node_registry.record_heartbeat(session, SECOND, capacity=100, problem=None)
    ),
    "tombstone a node": in_transaction(lambda session, _: node_registry.forget(session, LOST)),
    "uncordon": in_transaction(lambda session, _: node_registry.uncordon(session, SECOND)),
    "drain": in_transaction(lambda session, rows: drain.stop(session, rows.context.settings.node, rows.ids["one"])),
    "renew": in_transaction(renew),
    "free": in_transaction(free),
    "change settings": in_transaction(change_settings),
    "set a clone's branch": in_transaction(set_branch),
    "keep unknown containers": keep_unknown,
    "approve unknown containers": in_transaction(approve_unknown),
    "create a key": in_transaction(create_key),
    "revoke a key": in_transaction(revoke_key),
    "approve a device": in_transaction(approve_device),
    "collect a device's key": in_transaction(collect_key),
}
