"""Values in the documents of agent servers, read without trust. Pure: no store, no HTTP.

An invalid optional value is None, so that a report with one bad value still counts.
"""

from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any

from shared.clock import now
from shared.errors import Invalid
from shared.ids import parse_id
from shared.json_documents import clean_text
from shared.users.llm_profiles import mask_urls
from shared.users.mcp_config import mask_reported, mask_url

# `deleting` is left out: the agent server has deleted the conversation then, but this service keeps it (wire contract
# 1.11).
STATUSES = ("idle", "running", "paused", "waiting_for_confirmation", "finished", "error", "stuck")
MAX_ID_LENGTH = 64
# No agent server is older than `EARLIEST`. A time that is further ahead than `MAX_AHEAD`, the maximum clock difference,
# is replaced by the current time.
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
MAX_AHEAD = timedelta(seconds=20)
# The maximum length of a time's text: Python would parse any number of decimal places.
MAX_TIME_LENGTH = 64
MAX_REASON_LENGTH = 64
MAX_DETAIL_LENGTH = 2000
MAX_TAG_LENGTH = 256
# The limits of all tags of a conversation together, because lists show them.
MAX_TAGS, MAX_TAG_CHARACTERS = 100, 4096


def read_failure(body: dict[str, Any]) -> tuple[str, str]:
    """The code and the text of an error, with defaults for missing ones."""
    reason = clean_text(body.get("code"), MAX_REASON_LENGTH) or "unknown"
    return reason, clean_text(body.get("detail"), MAX_DETAIL_LENGTH) or "the agent server gave no reason"


def read_status(value: Any) -> str | None:
    """A known execution status."""
    return value if isinstance(value, str) and value in STATUSES else None


def read_tags(value: Any) -> dict[str, str]:
    """The tags with usable names and texts."""
    items = as_object(value).items()
    read = {clean_text(name, MAX_TAG_LENGTH): clean_text(text, MAX_TAG_LENGTH) for name, text in items}
    return {name: text for name, text in read.items() if name is not None and text is not None}


def limit_tags(tags: dict[str, str]) -> dict[str, str]:
    """The first tags that are within the limits together."""
    first = list(tags.items())[:MAX_TAGS]
    totals = accumulate(len(name) + len(text) for name, text in first)
    return dict(item for item, total in zip(first, totals, strict=True) if total <= MAX_TAG_CHARACTERS)


def as_object(value: Any) -> dict[str, Any]:
    """The value, or an empty object in place of any other type."""
    return value if isinstance(value, dict) else {}


def require_name(body: dict[str, Any], key: str) -> str:
    """The text of a required field.

    Raises:
        ValueError: the text is missing, empty, too long or not printable.
    """
    value = body.get(key)
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= MAX_ID_LENGTH:
        raise ValueError(f"{key}: a text of 1 to {MAX_ID_LENGTH} printable characters is needed")
    return value


def read_uuid(value: Any) -> str | None:
    """A UUID as this service writes ids."""
    try:
        return parse_id(value) if isinstance(value, str) else None
    except Invalid:
        return None


def require_time(body: dict[str, Any], key: str) -> datetime:
    """The time in a required field.

    Raises:
        ValueError: the time is missing or not an ISO 8601 time.
    """
    time = read_time(body.get(key))
    if time is None:
        raise ValueError(f"{key}: an ISO 8601 time is needed")
    return time


def read_time(value: Any) -> datetime | None:
    """A time in UTC, not before `EARLIEST`. A time more than `MAX_AHEAD` in the future becomes the current time.

    A time without a zone is the container's local time, which is UTC.
    """
    if not isinstance(value, str) or len(value) > MAX_TIME_LENGTH:
        return None
    try:
        time = datetime.fromisoformat(value)
        time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    # A status with a time in the year 9999 could not be replaced by any later status.
    return max(time, EARLIEST) if time <= (current := now()) + MAX_AHEAD else current


def mask_event(body: dict[str, Any]) -> dict[str, Any]:
    """The event without the credentials that the agent server leaves in the URLs of MCP servers, LLMs and critics."""
    match body:
        case {"key": "full_state", "value": {"agent": {**agent}} as state}:
            return body | {"value": state | {"agent": _mask_agent(agent)}}
        case {"key": "agent", "value": {**agent}}:
            return body | {"value": _mask_agent(agent)}
    return body


def _mask_agent(agent: dict[Any, Any]) -> dict[Any, Any]:
    masks = {"mcp_config": mask_reported, "llm": mask_urls, "condenser": _mask_condenser, "critic": _mask_critic}
    return agent | {name: mask(agent[name]) for name, mask in masks.items() if isinstance(agent.get(name), dict)}


def _mask_condenser(condenser: dict[str, Any]) -> dict[str, Any]:
    llm = condenser.get("llm")
    return condenser | {"llm": mask_urls(llm)} if isinstance(llm, dict) else condenser


def _mask_critic(critic: dict[str, Any]) -> dict[str, Any]:
    url = critic.get("server_url")
    return critic | {"server_url": mask_url(url)} if isinstance(url, str) else critic
