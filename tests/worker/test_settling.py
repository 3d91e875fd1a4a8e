"""What is written when a turn ends."""

import pytest
from prometheus_client import generate_latest

from shared import instruments
from shared.clock import now
from shared.crypto import new_api_key
from shared.models import Sandbox
from shared.states import Desired, Status
from shared.store import user_settings, wishes
from tests.factories import Person
from tests.fakes.engine import IMAGE, FakeEngine
from tests.services.metrics import read_metrics
from tests.worker.scenes import row, start, warm
from worker.converge import converge
from worker.parts import Parts


def test_failure_s_log_lines_hold_no_key_of_the_sandbox(
    parts: Parts, engine: FakeEngine, user: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot_key = new_api_key()
    sandbox_id = start(parts, user)
    with parts.database.transaction() as session:
        sandbox = session.get_one(Sandbox, sandbox_id)
        sandbox.boot_key = parts.vault.encrypt(boot_key)
        session_key = parts.vault.decrypt(sandbox.session_key)
    monkeypatch.setattr(engine, "read_log", lambda _name, _lines: f"with {boot_key} and {session_key}, it ends\n")
    engine.at_boot = 3
    converge(parts, sandbox_id)
    failed = row(parts, Sandbox, sandbox_id)
    assert failed.status == Status.ERROR
    assert str(failed.detail).endswith("with ****** and ******, it ends")


def test_failure_s_log_lines_hold_no_secret_of_its_owner(
    parts: Parts, engine: FakeEngine, user: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    with parts.database.transaction() as session:
        user_settings.change(session, parts.vault, user.id, {"llm_api_key": "plain-key"})
    sandbox_id = start(parts, user)
    monkeypatch.setattr(engine, "read_log", lambda _name, _lines: "401 incorrect API key: plain-key\n")
    engine.at_boot = 3
    converge(parts, sandbox_id)
    assert str(row(parts, Sandbox, sandbox_id).detail).endswith("401 incorrect API key: ******")


REFILL = "agent_workspace_warm_pool_refill_seconds"


def refills(parts: Parts) -> tuple[float, float]:
    """How many members became ready, and how many of them within ten seconds."""
    told = read_metrics(generate_latest(instruments.collector(parts.shared)).decode())
    return told.get((f"{REFILL}_count", IMAGE), 0), told.get((f"{REFILL}_bucket", "10.0", IMAGE), 0)


def test_refill_s_duration_is_counted_once(parts: Parts, user: Person) -> None:
    count, quick = refills(parts)
    slow = warm(parts, 20)
    for sandbox_id in (warm(parts, 0), slow, start(parts, user)):
        converge(parts, sandbox_id)
        assert row(parts, Sandbox, sandbox_id).status == Status.RUNNING
    assert refills(parts) == (count + 2, quick + 1)
    # Whatever happens to it later is no refill.
    for desired in (Desired.STOPPED, Desired.RUNNING):
        with parts.database.transaction() as session:
            wishes.wish(session, session.get_one(Sandbox, slow), desired, due_at=now())
        converge(parts, slow)
        assert row(parts, Sandbox, slow).observed_generation > 1
    assert row(parts, Sandbox, slow).status == Status.RUNNING
    assert refills(parts) == (count + 2, quick + 1)


def test_a_member_that_fails_is_no_refill(parts: Parts, engine: FakeEngine) -> None:
    before = refills(parts)
    engine.at_boot = 3
    sandbox_id = warm(parts, 0)
    converge(parts, sandbox_id)
    assert row(parts, Sandbox, sandbox_id).status == Status.ERROR
    assert refills(parts) == before
