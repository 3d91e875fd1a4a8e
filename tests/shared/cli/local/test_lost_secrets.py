"""`users remove-lost-secrets`, after the secret key was lost."""

from pathlib import Path

import pytest

from shared.crypto import MissingKey, new_secret_key
from shared.db.database import Database
from shared.users import accounts, secrets, settings_store
from tests.shared.cli.results import Cli, rows, vault_of

LOST = ["settings: keys, MCP servers and LLM profiles", "secret OLD", "token for github"]


@pytest.fixture
def alice(migrated: Cli, var: Path, database: Database) -> str:
    """The id of a user whose secrets need a lost key, except one."""
    assert migrated("users", "create", "alice").status == 0
    with database.transaction() as session:
        user_id, vault = accounts.get_user(session, "alice").id, vault_of(var)
        settings_store.change(session, vault, user_id, {"llm_api_key": "lost", "llm_model": "openai/a"})
        secrets.put_custom_secrets(session, vault, user_id, {"OLD": {"secret": "lost"}})
        secrets.put_provider_tokens(session, vault, user_id, {"github": {"token": "lost", "host": "git.example"}})
    (var / "secret.key").write_text(new_secret_key())
    with database.transaction() as session:
        secrets.put_custom_secrets(session, vault_of(var), user_id, {"NEW": {"secret": "kept"}})
    return user_id


def store_key(database: Database, var: Path, user_id: str) -> None:
    with database.transaction() as session:
        settings_store.change(session, vault_of(var), user_id, {"llm_api_key": "new"})


def test_user_stores_settings_again(migrated: Cli, alice: str, var: Path, database: Database) -> None:
    with pytest.raises(MissingKey):
        store_key(database, var, alice)
    response = migrated("users", "remove-lost-secrets", "alice", "--yes")
    assert (response.status, "removed 3 secret(s)" in response.out) == (0, True)
    store_key(database, var, alice)
    with database.reading() as session:
        stored = settings_store.load(session, vault_of(var), alice)
        assert stored is not None
        assert (stored.llm_api_key, stored.llm_model) == ("new", "openai/a")
        custom = secrets.custom_secrets(session, vault_of(var), alice)
        assert {name: secret.value for name, secret in custom.items()} == {"NEW": "kept"}
        tokens = secrets.provider_tokens(session, vault_of(var), alice)
        assert [(token.token, token.host) for token in tokens.values()] == [(None, "git.example")]


def test_nothing_is_removed_without_a_confirmation(migrated: Cli, alice: str, var: Path, database: Database) -> None:
    response = migrated("users", "remove-lost-secrets", "alice")
    assert [row[0] for row in rows(response, status=2)] == LOST
    with pytest.raises(MissingKey):
        store_key(database, var, alice)
