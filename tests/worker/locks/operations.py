"""Everything that takes more than one lock, as API, worker and command line do it."""

from collections.abc import Callable
from functools import partial
from typing import Any

from sqlmodel import Session

import worker.quarantine
from shared import conversation_starts, leases, renewals
from shared.clock import after, now
from shared.conversation_starts import Wish
from shared.ids import new_id
from shared.models import Conversation, Node, Sandbox, StartTask
from shared.quotas import QuotaPolicy, Quotas
from shared.reports import read_event
from shared.states import Desired, PauseKind, Reason, Status
from shared.store import (
    claims,
    clones,
    conversations,
    deletions,
    device_authorizations,
    draining,
    evacuation,
    followers,
    nodes,
    pending_messages,
    quarantine,
    quotas,
    refusals,
    relocation,
    reports,
    sandboxes,
    specs,
    start_tasks,
    traffic,
    user_settings,
    users,
    warm_pool,
    wishes,
)
from shared.store.evacuation import Claimant, Lost
from shared.store.sandboxes import Fact
from tests.factories import VAULT
from tests.fakes.engine import IMAGE
from tests.worker.locks.world import CLONE, DEAD, LOST, SECOND, UNKNOWN, World
from worker import forgetting, refresh
from worker.starts import ConversationStart
from worker.sweep import sweep
from worker.warm_pool import tend_pools

LIMITS = Quotas(running=3, policy=QuotaPolicy.PAUSE_OLDEST)
Operation = Callable[[World], Any]
Part = Callable[..., Any]


def create(session: Session, world: World) -> None:
    spec = specs.get_spec(session, IMAGE)
    quotas.lock(session, world.bob.id, LIMITS)
    quotas.admit_create(session, world.bob.id, LIMITS, spec=spec, due_at=now())
    sandboxes.create(session, VAULT, owner_id=world.bob.id, spec=spec, due_at=after(9))


def obtain(session: Session, world: World) -> None:
    warm_pool.obtain(session, VAULT, owner_id=world.bob.id, spec=specs.get_spec(session, IMAGE), due_at=after(9))


def claim(world: World) -> None:
    claims.claim_at_once(world.database, VAULT, owner_id=world.bob.id, spec_id=IMAGE, due_at=after(9), own={})


def retire(session: Session, world: World) -> None:
    warm_pool.retire(session, [world.ids[f"member {number}"] for number in (2, 1, 0)], due_at=now())


def change_own_deadlines(session: Session, world: World) -> None:
    sandbox = sandboxes.get(session, world.ids["one"], world.alice.id, lock=True)
    sandboxes.set_deadlines(session, sandbox, {"freeze_after_seconds": 60})


def resume(session: Session, world: World) -> None:
    traffic.resume(session, world.ids["paused"], world.alice.id, LIMITS, due_at=now())


def wish(world: World, desired: Desired) -> None:
    wishes.wish_at_once(world.database, world.ids["two"], world.alice.id, desired, due_at=now())


def start(session: Session, world: World, *, owner: str, sandbox: str | None = None, limits: Quotas = LIMITS) -> None:
    request = {"sandbox_id": world.ids[sandbox] if sandbox else None}
    wished = Wish(getattr(world, owner).id, request, {}, after(9), limits)
    conversation_starts.accept(session, VAULT, wished)


def delete_conversation(session: Session, world: World) -> None:
    deletions.delete_conversation(session, world.ids["parent"], world.alice.id, due_at=now())


def report(session: Session, world: World) -> None:
    event = {"id": new_id(), "kind": "MessageEvent", "timestamp": now().isoformat(), "source": "agent"}
    sandbox = world.read(Sandbox, "one")
    reports.record_events(session, sandbox, world.ids["parent"], [read_event(event)], due_at=now())


def say(session: Session, world: World, *, conversation_id: str) -> None:
    pending_messages.add(session, world.ids[conversation_id], world.alice.id, [], due_at=now())


def continue_later(session: Session, world: World) -> None:
    running = [world.ids[name] for name in ("unlisted", "parent", "orphan")]
    conversations.continue_later(session, world.read(Sandbox, "one"), running)


def rename(session: Session, world: World) -> None:
    conversations.change(session, world.ids["parent"], world.alice.id, {"title": new_id()})


def rename_start(session: Session, world: World) -> None:
    start_tasks.rename(session, world.ids["unlisted"], world.alice.id, new_id())


def write_title(world: World) -> None:
    refresh._write_title(world.parts, world.read(Conversation, "parent"), new_id())


def forget(world: World) -> None:
    forgetting.forget(world.parts, world.read(Conversation, "deleted"))


def cancel(session: Session, world: World) -> None:
    start_tasks.cancel(session, world.ids["ending"], world.alice.id, due_at=now())


def finish_start(world: World) -> None:
    ConversationStart(world.parts, world.read(StartTask, "ending"))._finish()


def fail_start(world: World) -> None:
    ConversationStart(world.parts, world.read(StartTask, "failing"))._fail(Reason.CANCELLED, "cancelled")


def settle(session: Session, world: World, *, sandbox: str, fact: Fact) -> None:
    row = world.read(Sandbox, sandbox)
    sandboxes.move(session, row, fact, observed_generation=row.generation)
    if fact.status == Status.RUNNING:
        refusals.judge(session, row)
    followers.wake(session, row.id, now())


def hand_on(session: Session, world: World) -> None:
    relocation.hand_on(session, world.read(Sandbox, "refused"), "no", due_at=now())


def evacuate(session: Session, world: World, *, sandbox: str) -> None:
    lost = Lost(LOST, session.get_one(Node, LOST).heartbeat_at)
    evacuation.evacuate(session, lost, world.ids[sandbox], Claimant("w", 5, now()))


def renew(session: Session, world: World) -> None:
    fences = {world.ids[name]: 0 for name in ("held", "three", "one")}
    renewals.renew(session, Sandbox, fences, 10)


def free(session: Session, _world: World) -> None:
    table: Any
    for table in (Sandbox, StartTask, Conversation):
        leases.free(session, table, DEAD, now())


def change_settings(session: Session, world: World) -> None:
    user_settings.change(session, VAULT, world.alice.id, {"llm_model": new_id()})


def set_branch(session: Session, world: World) -> None:
    clones.set_branch(session, world.read(StartTask, "ending"), CLONE, new_id())


def keep_unknown(world: World) -> None:
    worker.quarantine._keep(world.parts, [*UNKNOWN[1:], "aw-new", "aw-other"])


def approve_unknown(session: Session, world: World) -> None:
    quarantine.approve(session, world.parts.settings.node, UNKNOWN[::-1])


def create_key(session: Session, world: World) -> None:
    users.create_own_key(session, VAULT, world.alice.id, "another", None, world.ids["key"])


def revoke_key(session: Session, world: World) -> None:
    users.revoke_own_key(session, world.alice.id, world.ids["key"])


def approve_device(session: Session, world: World) -> None:
    code, key_id = world.ids["code of a device"], world.ids["key"]
    device_authorizations.decide(session, VAULT, code, key_id, approve=True)


def collect_key(session: Session, world: World) -> None:
    device_authorizations.poll(session, VAULT, world.ids["approved device"])


def in_transaction(part: Part, **options: Any) -> Operation:
    def act(world: World) -> None:
        with world.database.transaction() as session:
            part(session, world, **options)

    return act


FROZEN = Fact(Status.PAUSED, pause_kind=PauseKind.FROZEN)
OPERATIONS: dict[str, Operation] = {
    "create": in_transaction(create),
    "obtain": in_transaction(obtain),
    "claim": claim,
    "tend pools": lambda world: tend_pools(world.parts),
    "retire": in_transaction(retire),
    "change a spec": in_transaction(lambda session, _: specs.change(session, IMAGE, {"cpus": 1.0})),
    "set a spec's deadlines": in_transaction(
        lambda session, _: specs.set_deadlines(session, IMAGE, {"freeze_after_seconds": 600})
    ),
    "change own deadlines": in_transaction(change_own_deadlines),
    "resume": in_transaction(resume),
    "pause": partial(wish, desired=Desired.PAUSED),
    "delete": partial(wish, desired=Desired.DELETED),
    "start in a sandbox": in_transaction(start, owner="alice", sandbox="paused"),
    "start in any sandbox": in_transaction(start, owner="alice"),
    "start in a new sandbox": in_transaction(start, owner="bob"),
    "start without quotas": in_transaction(start, owner="alice", sandbox="paused", limits=Quotas()),
    "delete a conversation": in_transaction(delete_conversation),
    "report": in_transaction(report),
    "say": in_transaction(say, conversation_id="parent"),
    "say to what is being started": in_transaction(say, conversation_id="unlisted"),
    "continue later": in_transaction(continue_later),
    "rename": in_transaction(rename),
    "rename a start": in_transaction(rename_start),
    "write a title": write_title,
    "forget": forget,
    "cancel a start": in_transaction(cancel),
    "finish a start": finish_start,
    "fail a start": fail_start,
    "settle": in_transaction(settle, sandbox="one", fact=FROZEN),
    "settle and judge": in_transaction(settle, sandbox="proven", fact=Fact(Status.RUNNING)),
    "hand on": in_transaction(hand_on),
    "tell of a lost node": in_transaction(evacuate, sandbox="lost"),
    "move from a lost node": in_transaction(evacuate, sandbox="resumed"),
    "sweep": lambda world: sweep(world.parts),
    "beat": in_transaction(lambda session, _: nodes.beat(session, SECOND, capacity=100, problem=None)),
    "forget a node": in_transaction(lambda session, _: nodes.forget(session, LOST)),
    "uncordon": in_transaction(lambda session, _: nodes.uncordon(session, SECOND)),
    "drain": in_transaction(lambda session, world: draining.stop(session, world.parts.settings.node, world.ids["one"])),
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
