"""One request to an agent server and its answer, read within a timeout for the whole and up to a max size.

An agent server is as hostile as the agent in its sandbox. One that sends a byte a second meets the timeout of each read
of a socket, so the timeout here is for all of them together. Encoded content is refused: a small part may inflate to
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

# Of an answer. A description of a conversation has 7 KB, a command's output that a worker reads has 4 KB.
MAX_BYTES = 1024 * 1024
# A value of three bytes may take 200 in memory.
MAX_VALUES = 200_000
# The server drops a connection that was idle for 5 s: a request must not meet it doing so.
KEEPALIVE_SECONDS = 4.0
CONTROL_SECONDS = 20.0

Shape = TypeVar("Shape", bound=BaseModel)

# What a hostile document takes is bounded for one; several at a time would take it several times.
_parsing = threading.Lock()


class Answer(NamedTuple):
    """The status and the whole content of an answer; `content` is empty if a refusal has too much of it."""

    status: int
    content: bytes

    @property
    def is_success(self) -> bool:
        """Whether the request was carried out."""
        return 200 <= self.status < 300


def open_client() -> httpx.Client:
    """A client for any number of agent servers and threads; it keeps connections for reuse.

    The environment's proxies are ignored: sandboxes are neighbours, not the internet. Cookies are refused: those of one
    sandbox would be sent to all others, since ports of one host share them.
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
    """Send a request and read its answer.

    Args:
        seconds: timeout for all of it.
        max_bytes: max size of the content of a success.
        content: what is sent, as httpx has it.

    Raises:
        httpx.HTTPError: there is no whole answer within that time.
        WrongServer: the content of a success is encoded or too large.
    """
    with timeout(seconds), _sent(client, method, url, seconds, headers, content) as response:
        read = _read(response, max_bytes)
        if read is None and response.is_success:
            raise WrongServer(f"the agent server's answer is encoded, or larger than {max_bytes} bytes")
        return Answer(response.status_code, read or b"")


def exchange_status(client: httpx.Client, method: str, url: str, *, seconds: float, headers: Mapping[str, str]) -> int:
    """Send a request and read the status of its answer only; the connection is closed if content follows.

    Raises:
        httpx.HTTPError: there is no status within `seconds`.
    """
    with timeout(seconds), _sent(client, method, url, seconds, headers, {}) as response:
        return int(response.status_code)


def read_shape(content: bytes, shape: type[Shape]) -> tuple[Shape, Any]:
    """Parse and check the content of an answer.

    Returns:
        What `shape` says of it, and the document as it is.

    Raises:
        ValueError: it is no JSON of that shape; the text quotes nothing of it.
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
    """The content; None if it is encoded or too large."""
    if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        return None
    content = bytearray()
    for chunk in response.iter_bytes():
        content += chunk
        if len(content) > max_bytes:
            return None
    return bytes(content)
