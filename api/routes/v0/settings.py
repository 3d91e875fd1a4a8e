"""Settings: one document for each user, secrets masked. V0's operations; V1's are in `api.routes.v1.settings`."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError

from api.errors.handlers import error_response, validation_entry
from api.request.authentication import Caller, CurrentCaller
from api.request.context import Context, ContextDep
from api.request.context_window import check_context_window
from api.routes.v0.legacy_route import LegacyRoute, replaced_by
from api.schemas.v0.settings import Message, SettingsInfo, SettingsUpdate, in_clear, serialize_settings
from shared.db.database import Session
from shared.errors import Gone
from shared.sandboxes import specs
from shared.users import secrets, settings_store
from shared.users.settings import StoredSettings

router = APIRouter(tags=["settings (V0)"], route_class=LegacyRoute)

REPLACED = replaced_by("/api/v1/settings")
NEVER_SAVED = "Settings not found"
NO_RESET = "settings are not reset as a whole: store null to set a field to its default"

# Takes the settings, the descriptions of secrets by name, and the hosts of providers.
Serialize = Callable[[StoredSettings, dict[str, str | None], dict[str, str | None]], Any]


@router.get("/settings", response_model=SettingsInfo, responses={404: {"description": NEVER_SAVED}}, **REPLACED)
def get_settings(context: ContextDep, caller: CurrentCaller) -> Any:
    """The caller's settings. 404 until settings, secrets or tokens are stored: the defaults hold."""
    return serialize_stored(context, caller, serialize_settings)


@router.post("/settings", **REPLACED)
def store_settings(context: ContextDep, caller: CurrentCaller, update: SettingsUpdate) -> Message:
    """Change the settings in the body; the others stay.

    Null sets a field to its default, except that it keeps `llm_api_key`, `llm_model`, `llm_base_url`, `search_api_key`
    and `user_consents_to_analytics`; an empty text clears a key; `**********` keeps a secret.
    """
    return store(context, caller, in_clear(update))


@router.post("/reset-settings", status_code=410, response_description="Removed", **REPLACED)
def reset_settings() -> None:
    """Removed from V0: settings are changed one by one, and null sets most of them to their defaults."""
    raise Gone(NO_RESET)


def serialize_stored(context: Context, caller: Caller, serialize: Serialize) -> Any:
    """The caller's settings in the shape that `serialize` returns; 404 if neither settings nor secrets are stored."""
    with context.database.reading() as session:
        stored = settings_store.load(session, context.vault, caller.id)
        names = secrets.describe_secrets(session, caller.id)
        hosts = secrets.provider_hosts(session, caller.id)
    if stored is None and not (names or hosts):
        # V0's clients read `error`, all others `detail`.
        return error_response(404, NEVER_SAVED, names=("detail", "error"))
    return serialize(stored or StoredSettings(), names, hosts)


def store(context: Context, caller: Caller, changes: dict[str, Any]) -> Message:
    """Store changes of settings, under their stored names, and the secrets of the same request.

    Raises:
        RequestValidationError: the sandbox spec is unknown to the caller, or see `check_context_window`.
    """
    sent = changes.pop("secrets_store", None) or {}
    with context.database.transaction() as session:
        _check_spec(session, caller, changes.get("default_sandbox_spec_id"))
        check_context_window(session, changes.get("agent_settings", {}).get("llm"), "agent_settings_diff", "llm")
        settings_store.change(session, context.vault, caller.id, changes)
        secrets.put_custom_secrets(session, context.vault, caller.id, sent.get("custom_secrets") or {})
        secrets.put_provider_tokens(session, context.vault, caller.id, sent.get("provider_tokens") or {})
    return Message(message="Settings stored")


def _check_spec(session: Session, caller: Caller, spec_id: str | None) -> None:
    if spec_id and not specs.is_choosable(session, caller.id, spec_id):
        entry = validation_entry(("body", "default_sandbox_spec_id"), "there is no sandbox spec with that id")
        raise RequestValidationError([entry])
