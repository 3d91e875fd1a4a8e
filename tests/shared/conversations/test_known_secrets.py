"""The secrets that may be in a sandbox: as many as are needed to hide them, or to hide a whole text."""

import json

import pytest

from shared.clock import after
from shared.conversations import known_secrets
from shared.db.database import Database
from shared.models import Sandbox
from shared.redaction import HIDDEN
from shared.states import Stage
from tests.factories import VAULT, ApiUser, make_sandbox, make_start_task


@pytest.fixture
def sandbox(database: Database, user: ApiUser) -> Sandbox:
    """A sandbox with three conversations; each has brought a secret of its own, and all the same one."""
    sandbox = make_sandbox(database, user)
    for number in range(3):
        sealed = VAULT.encrypt(json.dumps({"OWN": f"secret-{number}" * 100, "SAME": "same" * 100}))
        make_start_task(database, user, sandbox, stage=Stage.READY, secrets=sealed, created_at=after(-number))
    return sandbox


def test_requests_secrets_are_known_once(database: Database, sandbox: Sandbox) -> None:
    with database.reading() as session:
        found = known_secrets.find_in_sandbox(session, VAULT, sandbox)
    assert found[1:] == ["secret-0" * 100, "same" * 100, "secret-1" * 100, "secret-2" * 100]


def test_no_further_request_is_read_once_the_secrets_are_too_long(
    database: Database, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty requests may have 160 MB of secrets, and each log and each error makes a process read them."""
    monkeypatch.setattr("shared.conversations.known_secrets.MAX_SECRETS_LENGTH", 1500)
    monkeypatch.setattr("shared.redaction.MAX_SECRETS_LENGTH", 1500)
    with database.reading() as session:
        found = known_secrets.find_in_sandbox(session, VAULT, sandbox)
        redact = known_secrets.redact_for_sandbox(session, VAULT, sandbox, None)
    assert "secret-2" * 100 not in found
    assert redact("harmless") == HIDDEN
