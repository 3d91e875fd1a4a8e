"""The words of an agent server that refuses, without the values that they quote from a request."""

import re
from typing import Any

from pydantic import BaseModel

from shared.json_documents import storable
from worker.agent_server.exchange import read_shape


class Refusal(BaseModel):
    """What an answer may say of itself."""

    detail: Any = None
    exception: Any = None


def refusal_text(content: bytes) -> str:
    """What an answer's content says is wrong, on one line; empty if it says nothing."""
    try:
        refusal, _ = read_shape(content, Refusal)
    except ValueError:
        return ""
    context = [_problems(refusal.detail), _words(refusal.exception)]
    return "; ".join(part for part in context if part)


def _problems(detail: object) -> str:
    """FastAPI's list of problems as one line, or the plain text other errors carry."""
    if not isinstance(detail, list):
        return _words(detail)
    return "; ".join(_problem(entry) for entry in detail if isinstance(entry, dict))


def _problem(entry: dict[str, Any]) -> str:
    loc = entry.get("loc")
    names = loc if isinstance(loc, list) else []
    place = _words(".".join(str(part) for part in names if isinstance(part, str | int) and part != "body"))
    return f"{place}: {_words(entry.get('msg'))}" if place else _words(entry.get("msg"))


def _words(text: object) -> str:
    """A text on one line, without the shortened values that pydantic quotes: redaction can't find those."""
    if not isinstance(text, str):
        return ""
    # No bracket within: else a text of many opening ones would take the square of its length.
    text = re.sub(r"\[type=[^,\[\]]*, input_value=.*", "", text)
    text = re.sub(r"For further information visit \S+", "", text)
    return " ".join(storable(text).split())
