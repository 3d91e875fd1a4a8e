"""Settings, git tokens, the recorded use of a key, stored responses, and tombstones."""

from collections.abc import Mapping

from sqlmodel import select

from shared.clock import now
from shared.ids import new_id
from shared.models import ApiKey, IdempotencyKey, Sandbox
from shared.retention.tombstones import RETENTION
from shared.states import Desired, Status
from tests.drills.faults.operation import Operation, routine
from tests.drills.faults.runner import Runner
from tests.drills.faults.user_requests import LONG, SANDBOXES, send, set_key_use
from tests.services.engine import TINY_IMAGE
from tests.waiting import eventually

SETTINGS = {"llm_model": "openai/none", "llm_api_key": "unused", "max_iterations": 77}
PROVIDERS = {"provider_tokens": {"github": {"token": "git-token", "host": "https://git.example"}}}


def store_settings(runner: Runner, _subject: str = "") -> None:
    """Store settings."""
    send(runner, "POST", "/api/settings", json=SETTINGS)


def _settings_stored(runner: Runner, _subject: str) -> None:
    """Assert that a retry stores the settings."""
    store_settings(runner)
    response = send(runner, "GET", "/api/settings")
    assert response is not None
    assert response.json()["max_iterations"] == SETTINGS["max_iterations"]


def store_tokens(runner: Runner, _subject: str = "") -> None:
    """Store a git token."""
    send(runner, "POST", "/api/add-git-providers", json=PROVIDERS)


def _tokens_stored(runner: Runner, _subject: str) -> None:
    """Assert that a retry stores the token."""
    store_tokens(runner)
    response = send(runner, "GET", "/api/settings")
    assert response is not None
    assert list(response.json()["provider_tokens_set"]) == ["github"]


def _unused_key(runner: Runner) -> str:
    """An unused key."""
    set_key_use(runner, None)
    return ""


def _list_sandboxes(runner: Runner, _subject: str) -> None:
    send(runner, "GET", f"{SANDBOXES}/search")


def _use_recorded(runner: Runner, _subject: str) -> None:
    """Assert that a retry records the use of the key."""
    _list_sandboxes(runner, "")

    def is_recorded() -> bool:
        with runner.service.database.reading() as session:
            uses = select(ApiKey.last_used_at).where(ApiKey.user_id == runner.client.user.id)
            return None not in session.exec(uses).all()

    eventually(is_recorded)


def _leave_stored_response(runner: Runner, _subject: str) -> None:
    """Create an expired stored response."""
    row = IdempotencyKey(
        owner_id=runner.client.user.id,
        operation="POST /",
        key=new_id(),
        fingerprint="",
        status=200,
        answer={},
        expires_at=now() - LONG,
    )
    with runner.service.database.transaction() as session:
        session.add(row)


def _stored_response_deleted(runner: Runner, _subject: str) -> None:
    """Assert that a later sweep deletes the stored response."""

    def is_gone() -> bool:
        with runner.service.database.reading() as session:
            return session.exec(select(IdempotencyKey)).all() == []

    eventually(is_gone)


def _leave_tombstone(runner: Runner, sandbox_id: str) -> None:
    """Create the expired tombstone of a sandbox."""
    row = Sandbox(
        id=sandbox_id,
        owner_id=runner.client.user.id,
        spec_id=TINY_IMAGE,
        desired=Desired.DELETED,
        status=Status.DELETED,
        observed_generation=1,
        session_key="",
        session_key_digest=new_id(),
        updated_at=now() - RETENTION,
    )
    with runner.service.database.transaction() as session:
        session.add(row)


def _tombstone_deleted(runner: Runner, sandbox_id: str) -> None:
    """Assert that a later sweep deletes the tombstone."""

    def is_gone() -> bool:
        with runner.service.database.reading() as session:
            return session.get(Sandbox, sandbox_id) is None

    eventually(is_gone)


OPERATIONS: Mapping[str, Operation] = {
    "settings": Operation(owns=frozenset({"POST /settings"}), act=store_settings, verify=_settings_stored),
    "git-tokens": Operation(owns=frozenset({"POST /add-git-providers"}), act=store_tokens, verify=_tokens_stored),
    # The response cache authenticates the request before it is routed.
    "first-use-of-a-key": Operation(
        owns=frozenset({f"GET {SANDBOXES}/search", "GET /sandboxes/search"}),
        prepare=_unused_key,
        act=_list_sandboxes,
        verify=_use_recorded,
    ),
    "sweep-of-a-stored-response": routine("sweep", act=_leave_stored_response, verify=_stored_response_deleted),
    "sweep-of-a-tombstone": routine(
        "sweep", prepare=lambda _runner: new_id(), act=_leave_tombstone, verify=_tombstone_deleted
    ),
}
