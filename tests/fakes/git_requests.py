"""Requests to a git provider, and the providers' ways of paging."""

from dataclasses import dataclass
from typing import Any

TOKEN = "token-in-clear"
# A GitHub user's own token. TOKEN is the token of an app that acts for the user.
PERSONAL_TOKEN = "personal-in-clear"


NAMES = [f"app{number}" for number in range(7)]


BRANCHES = ["main", "feature/login", "feature/logout", "release-1", "release-2"]


PLACES = ["acme", "beta", "gamma"]


Reply = tuple[int, dict[str, str], Any]


@dataclass
class GitRequest:
    """A received request."""

    method: str
    path: str
    query: dict[str, str]
    authorization: str
    body: Any
    cookie: str = ""


def linked(
    request: GitRequest, items: list[Any], size_name: str, wrap: str | None = None, max_size: int = 100
) -> Reply:
    """Return a page by number, with a header that links the next page."""
    number, size = int(request.query.get("page", "1")), min(int(request.query.get(size_name, "30")), max_size)
    part = items[(number - 1) * size : number * size]
    headers = {"Link": '<http://elsewhere/next>; rel="next"'} if number * size < len(items) else {}
    return 200, headers, part if wrap is None else {wrap: part, "total_count": len(items)}


def named(request: GitRequest, items: list[Any]) -> Reply:
    """Return a page by number, with a link to the next page in the document."""
    number, size = int(request.query.get("page", "1")), int(request.query.get("pagelen", "10"))
    document = {"values": items[(number - 1) * size : number * size]}
    return 200, {}, document | ({"next": "http://elsewhere"} if number * size < len(items) else {})


def counted(request: GitRequest, items: list[Any]) -> Reply:
    """Return a page by the index of its first item."""
    first, size = int(request.query.get("start", "0")), int(request.query.get("limit", "25"))
    last = first + size
    more = {"isLastPage": last >= len(items), "nextPageStart": last if last < len(items) else None}
    return 200, {}, {"values": items[first:last]} | more


def matching(request: GitRequest, items: list[Any], name: str, key: str) -> list[Any]:
    text = request.query.get(name, "")
    return [item for item in items if text in item[key]]
