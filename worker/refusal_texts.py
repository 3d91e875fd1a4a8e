"""The words of an agent server that refuses, without the values that they quote from a request."""

import re
from typing import Any

import httpx


def refusal_text(response: httpx.Response) -> str:
    """What the answer says is wrong, on one line; empty if it says nothing."""
    try:
        body = response.json()
    except ValueError:
        return ""
    if not isinstance(body, dict):
        return ""
    parts = [_problems(body.get("detail")), _words(body.get("exception"))]
    return "; ".join(part for part in parts if part)


def _problems(detail: object) -> str:
    """FastAPI's list of problems as one line, or the plain text other errors carry."""
    if not isinstance(detail, list):
        return _words(detail)
    return "; ".join(_problem(entry) for entry in detail if isinstance(entry, dict))


def _problem(entry: dict[str, Any]) -> str:
    place = ".".join(str(part) for part in entry.get("loc", ()) if part != "body")
    return f"{place}: {_words(entry.get('msg'))}" if place else _words(entry.get("msg"))


def _words(text: object) -> str:
    """A text on one line, without the shortened values that pydantic quotes: redaction can't find those."""
    if not isinstance(text, str):
        return ""
    text = re.sub(r"\[type=[^,\]]*, input_value=.*", "", text)
    text = re.sub(r"For further information visit \S+", "", text)
    return " ".join(text.split())
