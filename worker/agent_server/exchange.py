"""The worker's transport of requests to agent servers (decision 45): threads wait, with one timeout for an exchange."""

from collections.abc import Mapping
from typing import Any

import httpx

from shared.agent_server.limits import KEEPALIVE_SECONDS, MAX_BYTES
from shared.agent_server.reader import Answer, ResponseReader, client_options
from worker.agent_server.cancellable_transport import CancellableTransport, timeout

CONTROL_SECONDS = 20.0


def open_client() -> httpx.Client:
    """Create a client for any number of agent servers and threads, with reuse of connections."""
    return httpx.Client(timeout=CONTROL_SECONDS, transport=CancellableTransport(KEEPALIVE_SECONDS), **client_options())


def exchange(
    client: httpx.Client,
    method: str,
    url: str,
    *,
    seconds: float,
    max_bytes: int = MAX_BYTES,
    headers: Mapping[str, str],
    **content: Any,
) -> Answer:
    """Send a request and read its response.

    Args:
        seconds: total timeout of request and response.
        max_bytes: max size of a successful response's content.
        content: httpx's arguments for the request's content.

    Raises:
        httpx.HTTPError: there is no complete response within `seconds`.
        WrongServer: the response is encoded, or larger than the reader's limits.
    """
    with (
        timeout(seconds),
        client.stream(method, url, headers=dict(headers), timeout=seconds, **content) as response,
    ):
        reader = ResponseReader(response, max_bytes)
        for chunk in response.iter_bytes():
            if not reader.feed(chunk):
                break
        return reader.answer


def exchange_status(client: httpx.Client, method: str, url: str, *, seconds: float, headers: Mapping[str, str]) -> int:
    """Send a request and read only the status of its response. The connection is closed if content follows.

    Raises:
        httpx.HTTPError: there is no status within `seconds`.
    """
    with timeout(seconds), client.stream(method, url, headers=dict(headers), timeout=seconds) as response:
        return int(response.status_code)
