"""Bodies of requests: read once the caller is known, within a limit and a deadline, and checked before they are parsed.

A NUL is refused here, which no text column of PostgreSQL holds.
"""

import asyncio
import json
from typing import Any

from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors.handlers import validation_entry
from api.json_text import TooCostly, check_size, in_thread_if_large
from api.paths import SANDBOX_PATH_PREFIX

WEBHOOKS = "/api/v1/webhooks/"
# Operations that want a key. What is outside, strangers may ask for.
WITH_KEY = "/api/"
# Bodies that we don't keep, but pass on as they come.
PASSED_ON = f"{SANDBOX_PATH_PREFIX}/"
BODY_HEADERS = (b"content-length", b"transfer-encoding")
# Of what strangers may send: more than any form of ours has, bytes.
MAX_OPEN_BYTES = 16_384
# From the moment at which a body is first asked for until its end.
BODY_SECONDS = 120.0
# In a request: each is validated on the event loop.
MAX_VALUES = 20_000
NUL_MESSAGE = "NUL characters can't be stored"
# The escape of NUL; behind an odd number of backslashes it is text.
NUL_ESCAPE = rb"\u0000"


class BodyLimitMiddleware:
    """Limits what is read of each body; those for sandboxes are not ours to read."""

    def __init__(self, app: ASGIApp, *, max_bytes: int, max_webhook_bytes: int) -> None:
        """Guard `app`; limits in bytes."""
        self._app = app
        self._max_bytes = max_bytes
        self._max_webhook_bytes = max_webhook_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a NUL in path or query with a 422, or pass on."""
        if scope["type"] != "http" or scope["path"].startswith(PASSED_ON):
            await self._app(scope, receive, send)
        elif (location := _nul_location(scope)) is not None:
            await JSONResponse({"detail": [_nul(location)]}, 422)(scope, receive, send)
        else:
            limited = _Body(receive, self._limit(scope["path"])).receive if has_body(scope) else receive
            await self._app(scope, limited, send)

    def _limit(self, path: str) -> int:
        if path.startswith(WEBHOOKS):
            return self._max_webhook_bytes
        return self._max_bytes if path.startswith(WITH_KEY) else min(self._max_bytes, MAX_OPEN_BYTES)


class _Body:
    """What comes of one body, as long as it keeps to its limits."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive, self._limit = receive, limit
        self._size = 0
        self._ends_at: float | None = None
        self._is_read = False

    async def receive(self) -> Message:
        """The next message.

        Raises:
            HTTPException: the body is too large, or takes too long.
        """
        message = await (self._receive() if self._is_read else self._receive_in_time())
        self._size += len(message.get("body", b""))
        self._is_read = not message.get("more_body", False)
        if self._size > self._limit:
            raise HTTPException(413, f"the body is larger than {self._limit} bytes")
        return message

    async def _receive_in_time(self) -> Message:
        if self._ends_at is None:
            self._ends_at = asyncio.get_running_loop().time() + BODY_SECONDS
        try:
            async with asyncio.timeout_at(self._ends_at):
                return await self._receive()
        except TimeoutError:
            raise HTTPException(408, f"the body has not come within {BODY_SECONDS:.0f} s") from None


class CheckedRequest(Request):
    """A request whose body is checked before anything is made of it; a large one is parsed in a thread."""

    async def check_body(self) -> None:
        """Read the body, if there is one.

        Raises:
            HTTPException: it is too large, or takes too long.
            RequestValidationError: it holds a NUL, too many values or a number of too many digits.
        """
        if has_body(self.scope):
            body = await self.body()
            if error := await in_thread_if_large(body, find_error, body):
                raise RequestValidationError([error])

    async def json(self) -> Any:
        """The body's document.

        Raises:
            JSONDecodeError: it has none.
        """
        if not hasattr(self, "_json"):
            body = await self.body()
            self._json = await in_thread_if_large(body, json.loads, body)
        return self._json


def find_error(body: bytes) -> dict[str, Any] | None:
    """What is wrong with a body, before it is parsed, as an entry of a 422."""
    if b"\0" in body:
        return _nul(("body",), "NUL bytes are no text in UTF-8, which the body has to be")
    if _has_nul_escape(body):
        return _nul(("body",))
    try:
        check_size(body, MAX_VALUES)
    except TooCostly as error:
        return validation_entry(("body",), str(error), error.code)
    return None


def has_body(scope: Scope) -> bool:
    """Whether there may be one: what says neither its length nor that it comes in parts has none (RFC 9112, 6.3)."""
    return any(name in BODY_HEADERS for name, _ in scope["headers"])


def _nul_location(scope: Scope) -> tuple[str, ...] | None:
    if "\0" in scope["path"]:
        return ("path",)
    return ("query",) if b"%00" in scope.get("query_string", b"") else None


def _nul(location: tuple[str, ...], message: str = NUL_MESSAGE) -> dict[str, Any]:
    return validation_entry(location, message, "nul")


def _has_nul_escape(body: bytes) -> bool:
    """Whether there is one; each backslash is read once, however they are arranged."""
    begin = 0
    while (position := body.find(NUL_ESCAPE, begin)) >= 0:
        before = body[begin:position]
        if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
            return True
        begin = position + len(NUL_ESCAPE)
    return False
