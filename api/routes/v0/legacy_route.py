"""V0's operations: a thin face over V1's, which says of itself that it is one (wire contract, section 5).

Each answer names what took its place, as RFC 9745 (`Deprecation`) and RFC 5829 (`successor-version`) have it. They go
on no day that is known, so there is no `Sunset`.
"""

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from starlette.datastructures import MutableHeaders
from starlette.types import Message, Receive, Scope, Send

from api.errors.handlers import answer_workspace_error
from api.request.authentication import ForUsers, Handler
from shared.errors import WorkspaceError

SINCE = datetime(2026, 11, 22, tzinfo=UTC)
# V0's clients read `error` or `message`, all others `detail`.
ERROR_NAMES = ("detail", "error", "message")
SUCCESSOR = "x-successor-version"


def replaced_by(path: str) -> dict[str, Any]:
    """How a route says what took its place; placeholders are those of its own path."""
    return {"deprecated": True, "openapi_extra": {SUCCESSOR: path}}


class LegacyRoute(ForUsers):
    """A route for users that is V0's; it is made with `replaced_by`."""

    def get_route_handler(self) -> Handler:
        """Handle, and tell errors under V0's names too."""
        handle = super().get_route_handler()

        async def handle_as_v0(request: Request) -> Response:
            try:
                return await handle(request)
            except WorkspaceError as error:
                return await answer_workspace_error(request, error, ERROR_NAMES)

        return handle_as_v0

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the headers, whatever the answer is."""
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
