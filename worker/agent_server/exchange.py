"""One request to an agent server and its response, with a total timeout and a max size.

An agent server is as hostile as the agent in its sandbox. A server that sends a byte a second restarts the timeout of
each socket read, so this timeout is for all reads together. Encoded content is refused: a small part may inflate to
any size.
"""

import threading
from collections.abc import Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, NamedTuple, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from shared.json_documents import read_document
from worker.agent_server.cancellable_transport import CancellableTransport, timeout
from worker.agent_server.errors import WrongServer

# Max size of a response. A conversation's document has 7 KB, a command's output that a worker reads has 4 KB.
MAX_BYTES = 1024 * 1024
# Max number of values in a document: a value of three bytes may take 200 in memory.
MAX_VALUES = 200_000
# The server closes a connection that was idle for 5 s. A request must not be sent at that moment.
KEEPALIVE_SECONDS = 4.0
CONTROL_SECONDS = 20.0

Shape = TypeVar("Shape", bound=BaseModel)

# One document is parsed at a time: the limits bound the memory for one hostile document.
_parsing = threading.Lock()


class Answer(NamedTuple):
    """Status and content of a response; `content` is empty if that of an error response is too large."""

    status: int
    content: bytes

    @property
    def is_success(self) -> bool:
        """Whether the server executed the request."""
        return 200 <= self.status < 300


def open_client() -> httpx.Client:
    """Create a client for any number of agent servers and threads, with reuse of connections.

    The environment's proxies are ignored: sandboxes are on the private network, not on the internet. Cookies are
    refused: those of one sandbox would be sent to all others, because ports of one host share cookies.
    """
    return httpx.Client(
        trust_env=False,
        timeout=CONTROL_SECONDS,
        transport=CancellableTransport(KEEPALIVE_SECONDS),
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
    )


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
        WrongServer: a successful response's content is encoded or too large.
    """
    with timeout(seconds), _sent(client, method, url, seconds, headers, content) as response:
        read = _read(response, max_bytes)
        if read is None and response.is_success:
            raise WrongServer(f"the agent server's response is encoded, or larger than {max_bytes} bytes")
        return Answer(response.status_code, read or b"")


def exchange_status(client: httpx.Client, method: str, url: str, *, seconds: float, headers: Mapping[str, str]) -> int:
    """Send a request and read only the status of its response. The connection is closed if content follows.

    Raises:
        httpx.HTTPError: there is no status within `seconds`.
    """
    with timeout(seconds), _sent(client, method, url, seconds, headers, {}) as response:
        return int(response.status_code)


def read_shape(content: bytes, shape: type[Shape]) -> tuple[Shape, Any]:
    """Parse and check the content of a response.

    Returns:
        The parsed `shape`, and the whole document.

    Raises:
        ValueError: the content is not JSON of that shape; the text does not quote the content.
    """
    with _parsing:
        document = read_document(content, MAX_VALUES)
        try:
            return shape.model_validate(document, strict=True), document
        except ValidationError:
            raise ValueError("the document has another shape") from None


def _sent(
    client: httpx.Client, method: str, url: str, seconds: float, headers: Mapping[str, str], content: dict[str, Any]
) -> Any:
    plain = {"Accept-Encoding": "identity", **headers}
    return client.stream(method, url, headers=plain, timeout=seconds, **content)


def _read(response: httpx.Response, max_bytes: int) -> bytes | None:
    """Return the content; None if it is encoded or too large."""
    if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        return None
    content = bytearray()
    for chunk in response.iter_bytes():
        content += chunk
        if len(content) > max_bytes:
            return None
    return bytes(content)
