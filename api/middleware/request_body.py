"""Request bodies: read after authentication, limited in size and time, and checked before they are parsed.

A body with a NUL is rejected, because PostgreSQL's text columns can't store one.
"""

import asyncio
import json
from typing import Any

from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors.handlers import error_response, validation_entry
from api.json_text import SMALL_BYTES, TooCostly, check_size, in_thread_if_large
from api.paths import SANDBOX_PATH_PREFIX
from shared.errors import Invalid

WEBHOOKS = "/api/v1/webhooks/"
# Operations that require a key. All others are open to unauthenticated callers.
WITH_KEY = "/api/"
# Bodies for sandboxes are streamed, not stored.
EXEMPT = f"{SANDBOX_PATH_PREFIX}/"
BODY_HEADERS = frozenset((b"content-length", b"transfer-encoding"))
# Max bytes of a body from an unauthenticated caller: more than any form of this service has.
MAX_OPEN_BYTES = 16_384
# After an error the rest of the body is not read.
CLOSE = {"Connection": "close"}
# Max values in one request: each is validated on the event loop.
MAX_VALUES = 20_000
# Max parameters of a query: FastAPI parses all on the event loop, and 32,000 fit into one. A list of ids has 100.
MAX_PARAMETERS = 1000
NUL_MESSAGE = "NUL characters can't be stored"
# The escape of NUL; after an odd number of backslashes it is text.
NUL_ESCAPE = rb"\u0000"


class BodyLimitMiddleware:
    """Limits the size and the time of each body, except those for sandboxes."""

    def __init__(self, app: ASGIApp, *, max_bytes: int, max_webhook_bytes: int, max_seconds: float) -> None:
        """Wrap `app`; limits in bytes, and in seconds from the first read of a body to its end."""
        self._app = app
        self._max_seconds = max_seconds
        self._max_bytes = max_bytes
        self._max_webhook_bytes = max_webhook_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject a NUL in the path or the query, or too many parameters, with a 422, or pass the request on."""
        if scope["type"] != "http" or scope["path"].startswith(EXEMPT):
            await self._app(scope, receive, send)
        elif (error := _find_target_error(scope)) is not None:
            await error_response(422, [error])(scope, receive, send)
        else:
            limited = (
                _Body(receive, self._limit(scope["path"]), self._max_seconds).receive if has_body(scope) else receive
            )
            await self._app(scope, limited, send)

    def _limit(self, path: str) -> int:
        if path.startswith(WEBHOOKS):
            return self._max_webhook_bytes
        return self._max_bytes if path.startswith(WITH_KEY) else min(self._max_bytes, MAX_OPEN_BYTES)


class _Body:
    """The messages of one body, within its limits."""

    def __init__(self, receive: Receive, limit: int, max_seconds: float) -> None:
        self._receive, self._limit, self._max_seconds = receive, limit, max_seconds
        self._size = 0
        self._ends_at: float | None = None
        self._is_read = False

    async def receive(self) -> Message:
        """Return the next message.

        Raises:
            HTTPException: the body is too large, or takes too long.
            Invalid: the client disconnects before the end of the body.
        """
        message = await (self._receive() if self._is_read else self._receive_in_time())
        self._size += len(message.get("body", b""))
        self._is_read = not message.get("more_body", False)
        if self._size > self._limit:
            raise HTTPException(413, f"the body is larger than {self._limit} bytes", CLOSE)
        return message

    async def _receive_in_time(self) -> Message:
        if self._ends_at is None:
            self._ends_at = asyncio.get_running_loop().time() + self._max_seconds
        try:
            async with asyncio.timeout_at(self._ends_at):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, f"the body was not received within {self._max_seconds:g} s", CLOSE) from None
        if message["type"] == "http.disconnect":
            # Starlette raises an error of its own, which would be an internal one.
            raise Invalid("the client disconnected before the end of the body")
        return message


class CheckedRequest(Request):
    """A request whose body is checked before it is parsed; a thread parses a large one."""

    async def check_body(self) -> None:
        """Read and check the body, if there is one.

        Raises:
            HTTPException: the body is too large, or takes too long.
            RequestValidationError: the body contains a NUL, too many values or a number with too many digits.
        """
        body = await self.body() if has_body(self.scope) else b""
        if body and (error := await in_thread_if_large(body, find_error, body)):
            raise RequestValidationError([error])

    async def json(self) -> Any:
        """Return the parsed body.

        Raises:
            JSONDecodeError: the body is not JSON.
        """
        if not hasattr(self, "_json"):
            body = await self.body()
            self._json = await in_thread_if_large(body, json.loads, body)
        return self._json


def find_error(body: bytes) -> dict[str, Any] | None:
    """Check a body before it is parsed; return the entry of a 422, or None."""
    if b"\0" in body:
        return _nul(("body",), "the body must be UTF-8 text without NUL bytes")
    if _has_nul_escape(body):
        return _nul(("body",))
    try:
        check_size(body, MAX_VALUES)
    except TooCostly as error:
        return validation_entry(("body",), str(error), error.code)
    return None


def has_body(scope: Scope) -> bool:
    """Whether a request may have a body: without a length and a transfer encoding it has none (RFC 9112, 6.3)."""
    return not BODY_HEADERS.isdisjoint(dict(scope["headers"]))


def may_be_large(scope: Scope) -> bool:
    """Whether a request may have a body over `SMALL_BYTES`: its headers say so, or do not say how long it is."""
    lengths = [value for name, value in scope["headers"] if name in BODY_HEADERS]
    return any(
        not value.isdigit() or len(value) > len(str(SMALL_BYTES)) or int(value) > SMALL_BYTES for value in lengths
    )


def _find_target_error(scope: Scope) -> dict[str, Any] | None:
    query: bytes = scope.get("query_string", b"")
    if "\0" in scope["path"]:
        return _nul(("path",))
    if b"%00" in query:
        return _nul(("query",))
    if query.count(b"&") >= MAX_PARAMETERS:
        return validation_entry(("query",), f"there are more than {MAX_PARAMETERS} parameters", "too_many_values")
    return None


def _nul(location: tuple[str, ...], message: str = NUL_MESSAGE) -> dict[str, Any]:
    return validation_entry(location, message, "nul")


def _has_nul_escape(body: bytes) -> bool:
    """Whether the body contains an escaped NUL; linear in the size, however its backslashes are arranged."""
    begin = 0
    while (position := body.find(NUL_ESCAPE, begin)) >= 0:
        before = body[begin:position]
        if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
            return True
        begin = position + len(NUL_ESCAPE)
    return False
