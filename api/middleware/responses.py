"""What holds for every response: HEAD gets no body, and no cache may store what a route does not allow it to.

Responses contain keys, and what they show changes at any time.
"""

import asyncio

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.middleware.request_body import BODY_HEADERS
from api.paths import DOCS_ASSETS, SANDBOX_PATH_PREFIX

# Public files.
CACHEABLE = f"{DOCS_ASSETS}/"
# Agent servers respond to HEAD themselves.
EXEMPT = f"{SANDBOX_PATH_PREFIX}/"


class ResponseRules:
    """Adds `Cache-Control: no-store` to each response without a `Cache-Control` header, and responds to HEAD.

    HEAD is a GET whose response has no body (RFC 9110, 9.3.2). Routes need no code for it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] == "http" and not scope["path"].startswith(CACHEABLE):
            send = _not_cacheable(send)
        if scope["type"] == "http" and scope["method"] == "HEAD" and not scope["path"].startswith(EXEMPT):
            await self._head(scope, send)
        else:
            await self._app(scope, receive, send)

    async def _head(self, scope: Scope, send: Send) -> None:
        """Send only the start of the response to a GET. A body of the request has no meaning, and is not read."""
        started = asyncio.Event()

        async def disconnect() -> Message:
            # A streaming response ends when its client disconnects.
            await started.wait()
            return {"type": "http.disconnect"}

        async def send_start(message: Message) -> None:
            if message["type"] == "http.response.start":
                scope["fastapi"] = get.get("fastapi", {})  # the route, for those outside
                await send(message)
                await send({"type": "http.response.body", "body": b""})
                started.set()

        headers = [(name, value) for name, value in scope["headers"] if name not in BODY_HEADERS]
        get: Scope = {**scope, "method": "GET", "headers": headers}
        await self._app(get, disconnect, send_start)


def _not_cacheable(send: Send) -> Send:
    async def send_with_header(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).setdefault("Cache-Control", "no-store")
        await send(message)

    return send_with_header
