"""V0's operations: a thin layer over V1's, marked as deprecated (wire contract, section 5).

Each response names its successor (RFC 9745 `Deprecation`, RFC 5829 `successor-version`). No day of removal is set, so
there is no `Sunset`.
"""

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from starlette.datastructures import MutableHeaders
from starlette.types import Message, Receive, Scope, Send

from api.errors.handlers import handle_workspace_error
from api.request.authentication import Handler, UserRoute
from shared.errors import WorkspaceError

SINCE = datetime(2026, 11, 22, tzinfo=UTC)
# V0's clients read `error` or `message`, all others `detail`.
ERROR_NAMES = ("detail", "error", "message")
SUCCESSOR = "x-successor-version"


def replaced_by(path: str) -> dict[str, Any]:
    """The options of a route that is replaced by `path`, whose placeholders are those of the route's own path."""
    return {"deprecated": True, "openapi_extra": {SUCCESSOR: path}}


class LegacyRoute(UserRoute):
    """A V0 route for users. Create it with `replaced_by`."""

    def get_route_handler(self) -> Handler:
        """Handle requests; errors carry V0's field names too."""
        handle = super().get_route_handler()

        async def handle_as_v0(request: Request) -> Response:
            try:
                return await handle(request)
            except WorkspaceError as error:
                return await handle_workspace_error(request, error, ERROR_NAMES)

        return handle_as_v0

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the deprecation headers to each response."""
        headers = self._headers(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(headers)
            await send(message)

        await super().handle(scope, receive, send_with_headers)

    def _headers(self, scope: Scope) -> dict[str, str]:
        values = {name: quote(str(value), safe="") for name, value in scope["path_params"].items()}
        successor = (self.openapi_extra or {})[SUCCESSOR].format(**values)
        return {
            "Deprecation": f"@{int(SINCE.timestamp())}",
            "Link": f'<{successor}>; rel="successor-version"',
        }
