"""The sandbox path as an ASGI application, below its prefix."""

from starlette.types import Receive, Scope, Send

from api.connections import find_allowance
from api.context import Context
from api.traffic.door import Door
from api.traffic.exchange import Exchanges
from api.traffic.sockets import Sockets
from api.traffic.uses import Uses
from api.traffic.visit import PREFIX, Visit, read_visit
from api.traffic.waking import Waker
from shared import failpoints


class SandboxPath:
    """Finds out who calls, wakes the sandbox if it sleeps, and lets the two talk."""

    def __init__(self, here: Context) -> None:
        """Serve the sandboxes of this process's store."""
        door, waker, uses = Door(here), Waker(here), Uses(here.database)
        self._exchanges = Exchanges(here, door, waker, uses)
        self._sockets = Sockets(here, door, waker, uses)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or one websocket.

        Raises:
            WorkspaceError: a request can't be served, and nothing of an answer was sent.
        """
        visit = read_visit(scope)
        failpoints.begin(f"{visit.method} {PREFIX}/{{sandbox_id}}")
        if scope["type"] == "websocket":
            await self._sockets.serve(visit, receive, send, find_allowance(scope))
        else:
            await self._exchanges.serve(visit, receive, send)

    async def forward(self, visit: Visit, receive: Receive, send: Send) -> None:
        """Serve one request that came in another way.

        Raises:
            WorkspaceError: it can't be served, and nothing of an answer was sent.
        """
        await self._exchanges.serve(visit, receive, send)

    async def close(self) -> None:
        """Close the connections that are kept."""
        await self._exchanges.close()
