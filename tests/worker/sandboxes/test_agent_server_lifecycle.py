"""What a sandbox's agent server is told, at its boot and by whoever gives it away, and asked before that."""

import json
from dataclasses import replace

import pytest

from shared.clock import now
from shared.db.database import Database
from shared.models import Sandbox
from shared.sandboxes import specs
from shared.states import Status
from shared.warm_pool import pool as warm_pool
from tests.factories import VAULT, Person, make_person, make_sandbox
from tests.fakes.engine import IMAGE, FakeEngine
from tests.worker.scenes import row, start, warm
from worker.context import WorkerContext
from worker.sandboxes.agent_server_lifecycle import SandboxServer
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile


@pytest.mark.parametrize("pooled", [False, True])
def test_the_pages_that_may_ask_the_api_may_ask_it_too(
    context: WorkerContext, database: Database, pooled: bool
) -> None:
    sandbox = make_sandbox(database, make_person(database, "anna"))
    if pooled:
        sandbox.owner_id, sandbox.boot_key = None, VAULT.encrypt("boot")
    settings = context.shared.model_copy(
        update={"web_url": "https://aw.example", "cors_origins": "https://page.example/"}
    )
    config = json.loads(SandboxServer(replace(context, shared=settings), sandbox).config())
    assert config["allow_cors_origins"] == ["https://aw.example", "https://page.example"]


def test_a_member_builds_its_routes_while_nobody_waits(
    context: WorkerContext, engine: FakeEngine, user: Person
) -> None:
    member, owned = warm(context), start(context, user)
    for sandbox_id in (member, owned):
        reconcile(context, sandbox_id)
    assert engine.servers[container_name(member)].calls == ["warm_up"]
    assert engine.servers[container_name(owned)].calls == []


def test_server_that_was_told_by_a_worker_that_died(context: WorkerContext, engine: FakeEngine, user: Person) -> None:
    """It is not dormant any more, and nobody has written that down; the key that it booted with is no use either."""
    member = warm(context)
    reconcile(context, member)
    claimed = claim(context, user)
    assert claimed.id == member
    url = f"http://127.0.0.1:{engine.observe(container_name(member)).ports[8000]}"
    assert SandboxServer(context, claimed).initialize(url)
    reconcile(context, member)
    assert row(context, Sandbox, member).status == Status.RUNNING


def claim(context: WorkerContext, owner: Person) -> Sandbox:
    with context.database.transaction() as session:
        spec = specs.get_spec(session, IMAGE)
        spec.warm_most = 1
        return warm_pool.claim_or_create(session, context.vault, owner_id=owner.id, spec=spec, due_at=now())
