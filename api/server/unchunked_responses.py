"""Responses to HTTP/1.0, whose clients take the chunked encoding for a part of the body (RFC 9112, 6.1)."""

import sys
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def without_chunks(cycle: RequestResponseCycle, app: Any) -> Any:
    """The application. If the client speaks HTTP/1.0, a body without a length ends with its connection."""
    if cycle.scope["http_version"] == "1.1":
        return app

    async def respond(scope: Any, receive: Any, send: Any) -> None:
        has_length = True

        async def send_unchunked(message: Any) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                has_length = any(name.lower() == b"content-length" for name, _ in message["headers"])
            if not has_length:
                _expect(cycle, message)
            await send(message)

        await app(scope, receive, send_unchunked)

    return respond


def _expect(cycle: RequestResponseCycle, message: Any) -> None:
    """Have uvicorn send a body as it is: it compares what it sends with the length that it expects."""
    is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
    cycle.chunked_encoding = False
    cycle.expected_content_length = len(message.get("body", b"")) if is_last else sys.maxsize
