"""The response to a request that times out (RFC 9110, 15.5.9), and its reasons."""

import json

HEAD_TIMEOUT = "the head of the request was not received in time"
BODY_TIMEOUT = "the body of the request arrives too slowly"
CROWDED = "this request was slow while the service had too many connections; retry"


def timeout_response(detail: str) -> bytes:
    """Return a whole response with this reason, after which the connection is closed."""
    body = json.dumps({"detail": detail}).encode()
    head = (
        "HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\ncache-control: no-store\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
