"""HEAD: the response to a GET without its body (RFC 9110, 9.3.2). Routes need no code for it."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.middleware.request_body import BODY_HEADERS
from api.paths import SANDBOX_PATH_PREFIX

# Agent servers respond to HEAD themselves.
EXEMPT = f"{SANDBOX_PATH_PREFIX}/"


class HeadAsGet:
    """Passes each HEAD on as a GET and drops the body of the response."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; send only the start of the response to a HEAD."""
        if scope["type"] != "http" or scope["method"] != "HEAD" or scope["path"].startswith(EXEMPT):
            await self._app(scope, receive, send)
            return
        started = asyncio.Event()

        async def disconnect() -> Message:
            # A streaming response ends when its client disconnects.
            await started.wait()
            return {"type": "http.disconnect"}

        async def send_start(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})
                started.set()

        # A body has no meaning here (RFC 9110, 9.3.2): routes must not wait for it.
        headers = [header for header in scope["headers"] if header[0] not in BODY_HEADERS]
        await self._app({**scope, "method": "GET", "headers": headers}, disconnect, send_start)
