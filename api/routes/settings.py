"""Settings: one document for each user, secrets masked."""

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from api.auth import ForUsers, Me
from api.context import Here
from api.schemas.settings import Message, SettingsInfo, SettingsUpdate, in_clear, show_settings
from shared.store import secrets, user_settings

router = APIRouter(prefix="/settings", tags=["settings"], route_class=ForUsers)

NEVER_SAVED = "Settings not found"


@router.get("", response_model=SettingsInfo, responses={404: {"description": NEVER_SAVED}})
def get_settings(here: Here, me: Me) -> Any:
    """The caller's settings; a 404 until some are stored, for then the defaults hold."""
    with here.database.reading() as session:
        stored = user_settings.load(session, here.vault, me.id)
        names = secrets.describe_secrets(session, me.id)
        hosts = secrets.provider_hosts(session, me.id)
    if stored is None:
        # V0's clients read `error`, all others `detail`.
        return JSONResponse({"detail": NEVER_SAVED, "error": NEVER_SAVED}, 404)
    return show_settings(stored, names, hosts)


@router.post("")
def store_settings(here: Here, me: Me, update: SettingsUpdate) -> Message:
    """Change the settings that are sent and keep the others.

    Null is a field's default, except that it keeps `llm_api_key`, `llm_model`, `llm_base_url`, `search_api_key`
    and `user_consents_to_analytics`; an empty text clears a key; `**********` keeps a secret.
    """
    changes = in_clear(update)
    sent = changes.pop("secrets_store", None) or {}
    with here.database.transaction() as session:
        user_settings.change(session, here.vault, me.id, changes)
        secrets.put_custom_secrets(session, here.vault, me.id, sent.get("custom_secrets") or {})
        secrets.put_provider_tokens(session, here.vault, me.id, sent.get("provider_tokens") or {})
    return Message(message="Settings stored")
