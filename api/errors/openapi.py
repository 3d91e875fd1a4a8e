"""What operations refuse with, as the description of the interface says it.

What all routes of a kind have in common is said here, once; a route names what it has besides: `responses=refusals(…)`.
"""

from collections.abc import Callable
from typing import Any

from fastapi.routing import APIRoute
from pydantic import BaseModel


class Refusal(BaseModel):
    """Why a request was refused; a 422 has a list instead."""

    detail: str


Responses = dict[int | str, dict[str, Any]]

WORDS = {
    400: "an id or a `page_id` that is none, or what can't be done as it is",
    401: "no key, or one that is not in force",
    403: "what was shown is good, but not for this: a key, a cookie from another site's page, a provider's token",
    404: "no such thing, or another's",
    409: "something else is in the way",
    410: "it is deleted",
    413: "more than is taken at once",
    429: "a quota is used up, or the agent server is busy; `Retry-After` says when to try again",
    502: "the sandbox's agent server, or the git provider, does not answer as it should",
    503: "not now: the store does not answer, the sandbox is in ERROR, or the git provider wants to be asked later",
    504: "the git provider, or what the agent server waits for, does not answer in time",
}
WITH_BODY = {"POST", "PUT", "PATCH"}
CHANGING = WITH_BODY | {"DELETE"}


def error_responses(*statuses: int) -> Responses:
    """The `responses` of a route that refuses with these statuses."""
    # Not by `model`: that would have the media type of the route's success.
    content = {"application/json": {"schema": Refusal.model_json_schema()}}
    return {status: {"content": content, "description": WORDS[status]} for status in statuses}


def pages(*statuses: int) -> Responses:
    """The same of a route that answers with HTML pages."""
    return {status: {"content": {"text/html": {}}, "description": WORDS[status]} for status in statuses}


class DocumentedRoute(APIRoute):
    """A route for those who have a key: what all of them refuse with is in its description."""

    # Whether a browser's login opens it, too.
    by_cookie = False

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Take what `APIRoute` takes; `responses` of its own come first."""
        common = _common(path, set(options.get("methods") or ()), by_cookie=self.by_cookie)
        options["responses"] = common | (options.get("responses") or {})
        super().__init__(path, endpoint, **options)


def _common(path: str, methods: set[str], *, by_cookie: bool) -> Responses:
    names_something, has_body = "{" in path, bool(methods & WITH_BODY)
    by_kind = {
        400: names_something or has_body or "GET" in methods,
        401: True,
        403: by_cookie and bool(methods & CHANGING),
        404: names_something,
        413: has_body,
        503: True,
    }
    return error_responses(*(status for status, is_so in by_kind.items() if is_so))
