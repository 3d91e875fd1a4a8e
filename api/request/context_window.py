"""The check of an LLM's context window, which depends on the sandbox specs."""

from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError

from api.errors.handlers import validation_entry
from shared.db.database import Session
from shared.sandboxes import specs

# The agent server's `MIN_CONTEXT_WINDOW_TOKENS`: with a smaller one, each start would fail.
MIN_TOKENS = 16_384


def check_context_window(session: Session, llm: Mapping[str, Any] | None, *place: str) -> None:
    """Check the context window of an LLM's configuration, or of changes of one, at that place of the body.

    Raises:
        RequestValidationError: the agent server would refuse it, in the sandboxes of each spec.
    """
    tokens = (llm or {}).get("max_input_tokens")
    if tokens is None or tokens >= MIN_TOKENS or specs.allow_short_windows(session):
        return
    why = f"must be at least {MIN_TOKENS}, unless the environment of a sandbox spec has {specs.SHORT_WINDOWS}=true"
    raise RequestValidationError([validation_entry(("body", *place, "max_input_tokens"), why)])
