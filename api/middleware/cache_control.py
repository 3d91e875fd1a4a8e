"""`Cache-Control`: no cache may store a response unless its route allows it.

Responses contain keys, and what they show changes at any time.
"""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.paths import DOCS_ASSETS, SANDBOX_PATH_PREFIX

# Responses of agent servers, and public files.
EXEMPT = (f"{SANDBOX_PATH_PREFIX}/", f"{DOCS_ASSETS}/")


class NoStore:
    """Adds `Cache-Control: no-store` to each response without a `Cache-Control` header."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; add the header to its response."""
        if scope["type"] != "http" or scope["path"].startswith(EXEMPT):
            await self._app(scope, receive, send)
            return

        async def send_with_header(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, send_with_header)
