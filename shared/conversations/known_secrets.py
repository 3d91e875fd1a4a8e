"""A user's stored secrets in plain text, to redact them in texts of agent servers and providers."""

import json

from sqlmodel import Session, col, select

from shared.conversations import start_tasks
from shared.crypto import Vault
from shared.models import Sandbox, StartTask
from shared.redaction import MAX_SECRETS_LENGTH, Redact, redacting, secrets_of_token
from shared.users import secrets, settings_store
from shared.users.llm_profiles import secrets_of_llm
from shared.users.mcp_config import secrets_of_servers
from shared.users.settings import StoredSettings
from shared.users.settings_v1 import current_llm

# The maximum number of start requests in a sandbox whose secrets are read: the newest ones.
MAX_CONVERSATIONS = 50


def redact_for(session: Session, vault: Vault, user_id: str, conversation_id: str | None = None) -> Redact:
    """Return a redaction of the user's keys, tokens and custom secrets, and of those of the conversation's start."""
    known = _secrets_of_user(session, vault, user_id)
    if conversation_id is not None:
        known += start_tasks.secrets_of(session, vault, conversation_id).values()
    return redacting(known)


def redact_for_sandbox(session: Session, vault: Vault, sandbox: Sandbox, conversation_id: str | None) -> Redact:
    """Return a function that redacts all secrets of `find_in_sandbox`, and those of a conversation's start request."""
    known = find_in_sandbox(session, vault, sandbox)
    if conversation_id is not None:
        known += start_tasks.secrets_of(session, vault, conversation_id).values()
    return redacting(known)


def find_in_sandbox(session: Session, vault: Vault, sandbox: Sandbox) -> list[str]:
    """All stored secrets that a sandbox's processes may know: its keys, its owner's, its conversations'.

    Older conversations' are missing if the others are longer than `MAX_SECRETS_LENGTH`, which no redaction accepts.
    """
    keys = [vault.decrypt(key) for key in (sandbox.session_key, sandbox.boot_key) if key]
    if sandbox.owner_id is None:
        return keys
    return [*keys, *_secrets_of_user(session, vault, sandbox.owner_id), *_secrets_brought(session, vault, sandbox.id)]


def _secrets_brought(session: Session, vault: Vault, sandbox_id: str) -> list[str]:
    """The secrets of the newest start requests in a sandbox, each once.

    Requests may be large, so they are read one by one, and no further ones once the secrets are too long.
    """
    brought = select(StartTask.id).where(StartTask.sandbox_id == sandbox_id, col(StartTask.secrets).is_not(None))
    newest = brought.order_by(col(StartTask.created_at).desc()).limit(MAX_CONVERSATIONS)
    found: dict[str, None] = {}
    for task_id in session.exec(newest).all():
        sealed = session.exec(select(StartTask.secrets).where(StartTask.id == task_id)).first()
        found |= dict.fromkeys(json.loads(vault.decrypt(sealed)).values() if sealed else ())
        if sum(map(len, found)) > MAX_SECRETS_LENGTH:
            break
    return list(found)


def _secrets_of_user(session: Session, vault: Vault, user_id: str) -> list[str]:
    settings = settings_store.load(session, vault, user_id) or StoredSettings()
    entries = secrets.provider_tokens(session, vault, user_id).values()
    tokens = [secret for entry in entries for secret in secrets_of_token(entry.token or "")]
    custom = secrets.custom_secrets(session, vault, user_id).values()
    known = [*_secrets_of(settings), *tokens, *(secret.value for secret in custom)]
    return [secret for secret in known if secret]


def _secrets_of(settings: StoredSettings) -> list[str | None]:
    nested = settings.agent_settings
    critic = nested.get("verification", {})
    configurations = [current_llm(settings), critic, *settings.llm_profiles.profiles.values()]
    return [
        *(settings.search_api_key, settings.sandbox_api_key, critic.get("critic_api_key")),
        *(secret for configuration in configurations for secret in secrets_of_llm(configuration)),
        *secrets_of_servers(settings.mcp_config),
    ]
