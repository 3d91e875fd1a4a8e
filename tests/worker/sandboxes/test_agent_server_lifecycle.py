"""A sandbox's agent server: its configuration, its init request, and its probes before that."""

import json
from dataclasses import replace

import pytest

from shared.clock import now
from shared.conversations.webhook_ingest import NODE_HEADER
from shared.db.database import Database
from shared.models import Sandbox
from shared.sandboxes import specs
from shared.states import Status
from shared.warm_pool import start as sandbox_start
from tests.factories import VAULT, ApiUser, make_sandbox, make_user
from tests.fakes.engine import IMAGE, FakeEngine
from tests.worker.scenarios import row, start, warm
from worker.context import WorkerContext
from worker.sandboxes.agent_server_lifecycle import SandboxServer
from worker.sandboxes.container_spec import container_name, sandbox_url
from worker.sandboxes.reconciler import reconcile


@pytest.mark.parametrize("pooled", [False, True])
def test_agent_server_allows_the_same_origins_as_the_api(
    context: WorkerContext, database: Database, pooled: bool
) -> None:
    sandbox = make_sandbox(database, make_user(database, "anna"))
    if pooled:
        sandbox.owner_id, sandbox.boot_key = None, VAULT.encrypt("boot")
    settings = context.shared.model_copy(
        update={"web_url": "https://aw.example", "cors_origins": "https://page.example/"}
    )
    config = json.loads(SandboxServer(replace(context, shared=settings), sandbox).config())
    assert config["allow_cors_origins"] == ["https://aw.example", "https://page.example"]


def test_webhooks_name_the_node_of_the_container(context: WorkerContext, database: Database, user: ApiUser) -> None:
    """The container of a sandbox that was moved away may still run on a lost node."""
    config = json.loads(SandboxServer(context, make_sandbox(database, user)).config())
    assert [webhook["headers"] for webhook in config["webhooks"]] == [{NODE_HEADER: context.settings.node}]


def test_warm_sandbox_builds_its_routes_before_its_claim(
    context: WorkerContext, engine: FakeEngine, user: ApiUser
) -> None:
    warm_id, owned = warm(context), start(context, user)
    for sandbox_id in (warm_id, owned):
        reconcile(context, sandbox_id)
    assert engine.servers[container_name(warm_id)].calls == ["warm_up"]
    assert engine.servers[container_name(owned)].calls == []


def test_server_that_a_dead_worker_has_initialized_is_adopted(
    context: WorkerContext, engine: FakeEngine, user: ApiUser
) -> None:
    """The server no longer awaits an init request, but no row says so; its init key is no longer valid."""
    warm_id = warm(context)
    reconcile(context, warm_id)
    claimed = claim(context, user)
    assert claimed.id == warm_id
    url = sandbox_url(context.settings.door_url, engine.observe(container_name(warm_id)).address, 8000)
    assert SandboxServer(context, claimed).initialize(url)
    reconcile(context, warm_id)
    assert row(context, Sandbox, warm_id).status == Status.RUNNING


def claim(context: WorkerContext, owner: ApiUser) -> Sandbox:
    with context.database.transaction() as session:
        spec = specs.get_spec(session, IMAGE)
        spec.warm_most = 1
        return sandbox_start.start(session, context.vault, owner_id=owner.id, spec=spec, due_at=now()).sandbox
