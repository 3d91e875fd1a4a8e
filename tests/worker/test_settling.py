"""What is written when a turn ends."""

import pytest

from shared.crypto import new_api_key
from shared.models import Sandbox
from shared.states import Status
from tests.factories import Person
from tests.fakes.engine import FakeEngine
from tests.worker.scenes import row, start
from worker.converge import converge
from worker.parts import Parts


def test_no_key_of_the_sandbox_is_in_the_lines_that_a_failure_quotes(
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
