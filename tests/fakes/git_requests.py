"""Requests to a git provider, and the ways to page an answer."""

from dataclasses import dataclass
from typing import Any

TOKEN = "token-in-clear"


NAMES = [f"app{number}" for number in range(7)]


BRANCHES = ["main", "feature/login", "feature/logout", "release-1", "release-2"]


PLACES = ["acme", "beta", "gamma"]


Answer = tuple[int, dict[str, str], Any]


@dataclass
class Asked:
    """A request that has come in."""

    method: str
    path: str
    query: dict[str, str]
    authorization: str
    body: Any


def linked(asked: Asked, items: list[Any], size_name: str, wrap: str | None = None, most: int = 100) -> Answer:
    """A page by number, the next one named in a header."""
    number, size = int(asked.query.get("page", "1")), min(int(asked.query.get(size_name, "30")), most)
    part = items[(number - 1) * size : number * size]
    headers = {"Link": '<http://elsewhere/next>; rel="next"'} if number * size < len(items) else {}
    return 200, headers, part if wrap is None else {wrap: part, "total_count": len(items)}


def named(asked: Asked, items: list[Any]) -> Answer:
    """A page by number, the next one named in the document."""
    number, size = int(asked.query.get("page", "1")), int(asked.query.get("pagelen", "10"))
    document = {"values": items[(number - 1) * size : number * size]}
    return 200, {}, document | ({"next": "http://elsewhere"} if number * size < len(items) else {})


def counted(asked: Asked, items: list[Any]) -> Answer:
    """A page by the place where it begins."""
    first, size = int(asked.query.get("start", "0")), int(asked.query.get("limit", "25"))
    last = first + size
    more = {"isLastPage": last >= len(items), "nextPageStart": last if last < len(items) else None}
    return 200, {}, {"values": items[first:last]} | more


def holding(asked: Asked, items: list[Any], name: str, key: str) -> list[Any]:
    text = asked.query.get(name, "")
    return [item for item in items if text in item[key]]
