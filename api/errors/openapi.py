"""Error responses in the OpenAPI description.

`DocumentedRoute` adds the errors that all routes of a kind have in common. A route declares its other ones:
`responses=error_responses(…)`.
"""

from collections.abc import Callable
from typing import Any

from fastapi.routing import APIRoute
from pydantic import BaseModel


class ErrorBody(BaseModel):
    """Why a request was rejected; a 422 has a list instead."""

    detail: str
    # The response's `X-Request-ID`: with it, an operator finds the request in the logs.
    request_id: str


Responses = dict[int | str, dict[str, Any]]

DESCRIPTIONS = {
    400: "a malformed id or `page_id`, or a request that can't be executed as it is",
    401: "no valid key",
    403: "the key, the provider's token or a cookie from another site's page does not permit this",
    404: "no such resource, or it belongs to another user",
    408: "the body was not received in time",
    409: "a conflict with the current state",
    410: "it is deleted",
    413: "the request is too large",
    429: "a quota or a limit is used up, or the agent server is busy; retry after `Retry-After`",
    502: "the sandbox's agent server, or the git provider, is unreachable or sent an invalid response",
    503: "temporarily unavailable: the store does not respond, the sandbox is in ERROR, or the git provider is busy",
    504: "the git provider, or what the agent server waits for, does not respond in time",
}
WITH_BODY = {"POST", "PUT", "PATCH"}
CHANGING = WITH_BODY | {"DELETE"}


def error_responses(*statuses: int) -> Responses:
    """Return the `responses` of a route with these error statuses."""
    # With `model`, FastAPI would document them under the media type of the route's success.
    content = {"application/json": {"schema": ErrorBody.model_json_schema()}}
    return {status: {"content": content, "description": DESCRIPTIONS[status]} for status in statuses}


def pages(*statuses: int) -> Responses:
    """Return the `responses` of a route that responds with HTML pages."""
    return {status: {"content": {"text/html": {}}, "description": DESCRIPTIONS[status]} for status in statuses}


class DocumentedRoute(APIRoute):
    """A route for callers with a key; its description includes the errors that all such routes have."""

    # Whether a session cookie is accepted, too.
    accepts_cookie = False

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Take the options of `APIRoute`; the route's own `responses` take precedence."""
        common = _common(path, set(options.get("methods") or ()), accepts_cookie=self.accepts_cookie)
        options["responses"] = common | (options.get("responses") or {})
        super().__init__(path, endpoint, **options)


def _common(path: str, methods: set[str], *, accepts_cookie: bool) -> Responses:
    names_resource, has_body = "{" in path, bool(methods & WITH_BODY)
    applies = {
        400: names_resource or has_body or "GET" in methods,
        401: True,
        403: accepts_cookie and bool(methods & CHANGING),
        404: names_resource,
        408: has_body,
        413: has_body,
        429: True,
        503: True,
    }
    return error_responses(*(status for status, is_so in applies.items() if is_so))
