"""What caches may keep: nothing, unless a route says so. Answers hold keys, and what users see changes at any time."""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.paths import DOCS_ASSETS, SANDBOX_PATH_PREFIX

# Answers of agent servers, and files that are everybody's.
LEFT_ALONE = (f"{SANDBOX_PATH_PREFIX}/", f"{DOCS_ASSETS}/")


class NoStore:
    """Adds `Cache-Control: no-store` to each answer that says nothing of caches."""

    def __init__(self, app: ASGIApp) -> None:
        """Add it to the answers of `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and its answer back."""
        if scope["type"] != "http" or scope["path"].startswith(LEFT_ALONE):
            await self._app(scope, receive, send)
            return

        async def send_with_header(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, send_with_header)
