"""The sandbox path as an ASGI application, below its prefix."""

from starlette.types import Receive, Scope, Send

from api.paths import SANDBOX_PATH_PREFIX
from api.request.context import Context
from api.sandbox_proxy.access import AccessCheck
from api.sandbox_proxy.activity import ActivityRecorder
from api.sandbox_proxy.http import HttpProxy
from api.sandbox_proxy.request import read_proxy_request
from api.sandbox_proxy.wake import Waker
from api.sandbox_proxy.websocket import WebSocketProxy
from api.server.counted_websockets import find_buffers
from api.server.websockets import find_key_limits
from shared.observability import failpoints


class SandboxProxy:
    """Checks the caller's access, wakes a paused sandbox, and passes traffic in both directions."""

    def __init__(self, context: Context) -> None:
        access, waker, activity = AccessCheck(context), Waker(context), ActivityRecorder(context.database)
        # The route of `api.routes.v1.cloud_proxy` uses it, too.
        self.http = HttpProxy(context, access, waker, activity)
        self._websockets = WebSocketProxy(context, access, waker, activity)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or one websocket.

        Raises:
            WorkspaceError: the request can't be served, and no part of a response was sent.
        """
        proxied = read_proxy_request(scope)
        failpoints.begin(f"{proxied.method} {SANDBOX_PATH_PREFIX}/{{sandbox_id}}")
        if scope["type"] == "websocket":
            await self._websockets.serve(proxied, receive, send, find_key_limits(scope), find_buffers(scope))
        else:
            await self.http.serve(proxied, receive, send)

    async def close(self) -> None:
        await self.http.close()
