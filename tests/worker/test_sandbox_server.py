"""What a sandbox's agent server is told, at its boot and by whoever gives it away, and asked before that."""

import json
from dataclasses import replace

import pytest

from shared.clock import now
from shared.database import Database
from shared.models import Sandbox
from shared.states import Status
from shared.store import specs, warm_pool
from tests.factories import VAULT, Person, make_person, make_sandbox
from tests.fakes.engine import IMAGE, FakeEngine
from tests.worker.scenes import row, start, warm
from worker.converge import converge
from worker.parts import Parts
from worker.sandbox_container import container_name
from worker.sandbox_server import SandboxServer


@pytest.mark.parametrize("pooled", [False, True])
def test_the_pages_that_may_ask_the_api_may_ask_it_too(parts: Parts, database: Database, pooled: bool) -> None:
    sandbox = make_sandbox(database, make_person(database, "anna"))
    if pooled:
        sandbox.owner_id, sandbox.boot_key = None, VAULT.encrypt("boot")
    settings = parts.shared.model_copy(
        update={"web_url": "https://aw.example", "cors_origins": "https://page.example/"}
    )
    config = json.loads(SandboxServer(replace(parts, shared=settings), sandbox).config())
    assert config["allow_cors_origins"] == ["https://aw.example", "https://page.example"]


def test_a_member_builds_its_routes_while_nobody_waits(parts: Parts, engine: FakeEngine, user: Person) -> None:
    member, owned = warm(parts), start(parts, user)
    for sandbox_id in (member, owned):
        converge(parts, sandbox_id)
    assert engine.servers[container_name(member)].calls == ["warm_up"]
    assert engine.servers[container_name(owned)].calls == []


def test_server_that_was_told_by_a_worker_that_died(parts: Parts, engine: FakeEngine, user: Person) -> None:
    """It is not dormant any more, and nobody has written that down; the key that it booted with is no use either."""
    member = warm(parts)
    converge(parts, member)
    claimed = claim(parts, user)
    assert claimed.id == member
    url = f"http://127.0.0.1:{engine.observe(container_name(member)).ports[8000]}"
    assert SandboxServer(parts, claimed).initialize(url)
    converge(parts, member)
    assert row(parts, Sandbox, member).status == Status.RUNNING


def claim(parts: Parts, owner: Person) -> Sandbox:
    with parts.database.transaction() as session:
        spec = specs.get_spec(session, IMAGE)
        spec.warm_most = 1
        return warm_pool.obtain(session, parts.vault, owner_id=owner.id, spec=spec, due_at=now())
