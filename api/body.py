"""What is refused before a route is chosen: bodies too large, and NUL, which no text column of PostgreSQL holds."""

import json
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import validation_entry
from api.traffic.visit import PREFIX

WEBHOOKS = "/api/v1/webhooks/"
# Bodies that we don't keep, but pass on as they come.
PASSED_ON = f"{PREFIX}/"
BODY_HEADERS = (b"content-length", b"transfer-encoding")


class BodyGuard:
    """Reads each body once, within its limit, and hands it on whole; those for sandboxes are not ours to read."""

    def __init__(self, app: ASGIApp, *, max_bytes: int, max_webhook_bytes: int) -> None:
        """Guard `app`; limits in bytes."""
        self._app = app
        self._max_bytes = max_bytes
        self._max_webhook_bytes = max_webhook_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse with a 413 or 422, or pass on."""
        if scope["type"] != "http" or scope["path"].startswith(PASSED_ON):
            await self._app(scope, receive, send)
            return
        webhook, announced = scope["path"].startswith(WEBHOOKS), has_body(scope)
        body = await _read(receive, self._max_webhook_bytes if webhook else self._max_bytes) if announced else b""
        refusal = self._refuse(scope, body, webhook=webhook)
        if refusal is not None:
            await refusal(scope, receive, send)
        elif body is not None:
            await self._app(scope, _replay(body, receive) if announced else receive, send)

    def _refuse(self, scope: Scope, body: bytes | None, *, webhook: bool) -> JSONResponse | None:
        if body is None:
            limit = self._max_webhook_bytes if webhook else self._max_bytes
            return JSONResponse({"detail": f"the body is larger than {limit} bytes"}, 413)
        if "\0" in scope["path"] or b"%00" in scope.get("query_string", b""):
            return _nul(("path" if "\0" in scope["path"] else "query",))
        # An agent's terminal may print NULs: events are kept as they are, in JSON's own escape.
        if not webhook and b"\0" in body:
            return _nul(("body",), "NUL bytes are no text in UTF-8, which the body has to be")
        if not webhook and _says_nul(body):
            return _nul(("body",))
        return None


def has_body(scope: Scope) -> bool:
    """Whether there may be one: what says neither its length nor that it comes in parts has none (RFC 9112, 6.3)."""
    return any(name in BODY_HEADERS for name, _ in scope["headers"])


async def _read(receive: Receive, limit: int) -> bytes | None:
    """The whole body; None when it is larger than the limit."""
    chunks: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        size += len(message.get("body", b""))
        if size > limit:
            return None
        chunks.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(chunks)


def _replay(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


def _says_nul(body: bytes) -> bool:
    if b"\\u0000" not in body:
        return False
    try:
        return _has_nul(json.loads(body))
    except (ValueError, RecursionError):
        return False  # not JSON, or too deep to be read: the route will say so


def _has_nul(document: Any) -> bool:
    pending = [document]
    while pending:
        value = pending.pop()
        if isinstance(value, str) and "\0" in value:
            return True
        if isinstance(value, dict):
            pending += [*value, *value.values()]
        elif isinstance(value, list):
            pending += value
    return False


def _nul(location: tuple[str, ...], message: str = "NUL characters can't be stored") -> JSONResponse:
    return JSONResponse({"detail": [validation_entry(location, message, "nul")]}, 422)
