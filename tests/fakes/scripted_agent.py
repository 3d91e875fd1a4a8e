"""An agent server with scripted responses behind a real socket."""

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class ScriptedAgent:
    """The ASGI application.

    Args:
        answers: status and content by method and path ("GET /api/skills"). Another method gets a 405, like at the real
            server, and another path a 404.
        got: the received requests: method, path, query, session key and body.
        broken: requests, written as in `answers`, whose responses begin and never end.
    """

    responses: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    got: list[tuple[str, str, str, str | None, Any]] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        key = dict(scope["headers"]).get(b"x-session-api-key", b"").decode()
        query = scope["query_string"].decode()
        self.got.append((scope["method"], scope["path"], query, key, json.loads(body) if body else None))
        status, content = self._find(scope["method"], scope["path"])
        await send({"type": "http.response.start", "status": status, "headers": []})
        is_broken = f"{scope['method']} {scope['path']}" in self.broken
        await send({"type": "http.response.body", "body": content, "more_body": is_broken})

    def _find(self, method: str, path: str) -> tuple[int, bytes]:
        if any(known.partition(" ")[2] == path for known in self.responses):
            return self.responses.get(f"{method} {path}", (405, b'{"detail":"Method Not Allowed"}'))
        return 404, b'{"detail":"Not Found"}'
