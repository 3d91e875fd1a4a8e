"""HEAD: what GET would answer, without a body (RFC 9110, 9.3.2). No route has to know of it."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.paths import SANDBOX_PATH_PREFIX

# An agent server answers for itself.
PASSED_ON = f"{SANDBOX_PATH_PREFIX}/"


class HeadAsGet:
    """Passes each HEAD on as a GET, and drops the body of the answer."""

    def __init__(self, app: ASGIApp) -> None:
        """Stand before `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; of a HEAD's answer, send the beginning."""
        if scope["type"] != "http" or scope["method"] != "HEAD" or scope["path"].startswith(PASSED_ON):
            await self._app(scope, receive, send)
            return
        begun = asyncio.Event()

        async def leave() -> Message:
            # What streams ends as soon as its client is gone.
            await begun.wait()
            return {"type": "http.disconnect"}

        async def send_beginning(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})
                begun.set()

        await self._app({**scope, "method": "GET"}, leave, send_beginning)
