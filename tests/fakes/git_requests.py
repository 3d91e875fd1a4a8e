"""Requests to a git provider, and the providers' ways of paging."""

from dataclasses import dataclass
from typing import Any

TOKEN = "token-in-clear"
# A GitHub user's own token. TOKEN is the token of an app that acts for the user.
PERSONAL_TOKEN = "personal-in-clear"


NAMES = [f"app{number}" for number in range(7)]


BRANCHES = ["main", "feature/login", "feature/logout", "release-1", "release-2"]


PLACES = ["acme", "beta", "gamma"]


Answer = tuple[int, dict[str, str], Any]


@dataclass
class Asked:
    """A received request."""

    method: str
    path: str
    query: dict[str, str]
    authorization: str
    body: Any
    cookie: str = ""


def linked(asked: Asked, items: list[Any], size_name: str, wrap: str | None = None, max_size: int = 100) -> Answer:
    """Return a page by number, with a header that links the next page."""
    number, size = int(asked.query.get("page", "1")), min(int(asked.query.get(size_name, "30")), max_size)
    part = items[(number - 1) * size : number * size]
    headers = {"Link": '<http://elsewhere/next>; rel="next"'} if number * size < len(items) else {}
    return 200, headers, part if wrap is None else {wrap: part, "total_count": len(items)}


def named(asked: Asked, items: list[Any]) -> Answer:
    """Return a page by number, with a link to the next page in the document."""
    number, size = int(asked.query.get("page", "1")), int(asked.query.get("pagelen", "10"))
    document = {"values": items[(number - 1) * size : number * size]}
    return 200, {}, document | ({"next": "http://elsewhere"} if number * size < len(items) else {})


def counted(asked: Asked, items: list[Any]) -> Answer:
    """Return a page by the index of its first item."""
    first, size = int(asked.query.get("start", "0")), int(asked.query.get("limit", "25"))
    last = first + size
    more = {"isLastPage": last >= len(items), "nextPageStart": last if last < len(items) else None}
    return 200, {}, {"values": items[first:last]} | more


def matching(asked: Asked, items: list[Any], name: str, key: str) -> list[Any]:
    text = asked.query.get(name, "")
    return [item for item in items if text in item[key]]
