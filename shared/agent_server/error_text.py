"""Texts of an agent server's error responses, without the request's values that they quote."""

import re
from typing import Any

from pydantic import BaseModel

from shared.agent_server.shapes import read_shape
from shared.json_documents import clean_text, storable

MAX_DETAIL = 500


class ErrorBody(BaseModel):
    """The body of an error response."""

    detail: Any = None
    exception: Any = None


def error_text(content: bytes) -> str:
    """Return the error text of a response's content on one line; empty if it has none."""
    body = _read(content)
    texts = [_problems(body.detail), _words(body.exception)]
    return "; ".join(text for text in texts if text)


def detail_text(content: bytes) -> str:
    """Return only the detail, if it is a text, on one line."""
    detail = _read(content).detail
    return clean_text(" ".join(detail.split()), MAX_DETAIL) or "" if isinstance(detail, str) else ""


def _read(content: bytes) -> ErrorBody:
    try:
        return read_shape(content, ErrorBody)[0]
    except ValueError:
        return ErrorBody()


def _problems(detail: object) -> str:
    """Return FastAPI's list of problems as one line, or the plain text of other errors."""
    if not isinstance(detail, list):
        return _words(detail)
    return "; ".join(_problem(entry) for entry in detail if isinstance(entry, dict))


def _problem(entry: dict[str, Any]) -> str:
    loc = entry.get("loc")
    names = loc if isinstance(loc, list) else []
    place = _words(".".join(str(part) for part in names if isinstance(part, str | int) and part != "body"))
    return f"{place}: {_words(entry.get('msg'))}" if place else _words(entry.get("msg"))


def _words(text: object) -> str:
    """Return a text on one line, without the shortened values that pydantic quotes: redaction can't find those."""
    if not isinstance(text, str):
        return ""
    # The pattern excludes brackets: else a text of many opening brackets would take quadratic time.
    text = re.sub(r"\[type=[^,\[\]]*, input_value=.*", "", text)
    text = re.sub(r"For further information visit \S+", "", text)
    return " ".join(storable(text).split())
