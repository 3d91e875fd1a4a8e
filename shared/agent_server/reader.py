"""The bounded reader of agent servers' responses, for the API and the worker (decision 45).

An agent server is as hostile as the agent in its sandbox. A transport sends a request, enforces one deadline for the
whole exchange and the max size of the header (`limits.limited_header`), and feeds the content to a `ResponseReader`: that limits
its size and its chunks. Encoded content is refused: a small part may inflate to any size. `shapes.read_shape` then
limits the values of a document, and checks its shape.
"""

from http.cookiejar import CookieJar, DefaultCookiePolicy
from ssl import PROTOCOL_TLS_CLIENT, SSLContext
from typing import Any, NamedTuple

import httpx

from shared.agent_server.error_text import detail_text, error_text
from shared.agent_server.errors import AgentServerRefused, AgentServerUnreachable, ResponseTooLarge, WrongServer
from shared.agent_server.limits import FREE_CHUNKS, MAX_ERROR_BYTES, MIN_CHUNK_BYTES
from shared.redaction import Redact

MAX_DETAIL_LENGTH = 2000


class Answer(NamedTuple):
    """Status and content of a response. An error response has at most `MAX_ERROR_BYTES` of its content."""

    status: int
    content: bytes

    @property
    def is_success(self) -> bool:
        """Whether the server executed the request."""
        return 200 <= self.status < 300

    @property
    def detail(self) -> str:
        """The error's text for people, or an empty text."""
        return detail_text(self.content)

    def need(self, aim: str = "respond", redact: Redact = lambda _text: "") -> bytes:
        """Return the content of a success.

        Args:
            aim: what the server was asked to do, for errors.
            redact: removes secrets from the server's error text; by default all of it.

        Raises:
            WrongServer: the server rejects the key.
            AgentServerUnreachable: a temporary error.
            AgentServerRefused: any other status that is no success.
        """
        if self.is_success:
            return self.content
        if self.status == 401:
            raise WrongServer("the agent server rejects the sandbox's key: 401")
        detail = redact(error_text(self.content))[:MAX_DETAIL_LENGTH]
        if self.status >= 500 or self.status == 429:
            raise AgentServerUnreachable(f"the agent server could not {aim}: {self.status} {detail}".rstrip())
        raise AgentServerRefused(aim, self.status, detail)


class ResponseReader:
    """Collects the content of one response within its limits.

    Args:
        response: the response, of which only the header has been read.
        max_bytes: limit of a success's content.

    Raises:
        WrongServer: the content is encoded.
    """

    def __init__(self, response: httpx.Response, max_bytes: int) -> None:
        self._response, self._max_bytes = response, max_bytes
        self._content, self._chunks = bytearray(), 0
        if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            raise WrongServer("the agent server's response is encoded, contrary to the request")

    def feed(self, chunk: bytes) -> bool:
        """Take the next part of the content; return whether the reader needs more.

        Raises:
            ResponseTooLarge: a success has more content than its limit, or too many chunks.
        """
        self._content += chunk
        self._chunks += 1
        if not self._response.is_success:
            return len(self._content) <= MAX_ERROR_BYTES and self._chunks < FREE_CHUNKS
        if len(self._content) > self._max_bytes:
            raise ResponseTooLarge(f"the agent server's response is larger than {self._max_bytes} bytes")
        if self._chunks > FREE_CHUNKS + len(self._content) // MIN_CHUNK_BYTES:
            raise ResponseTooLarge("the agent server's response has too many chunks")
        return True

    @property
    def answer(self) -> Answer:
        """The response as far as it was read."""
        return Answer(self._response.status_code, bytes(self._content))


def client_options() -> dict[str, Any]:
    """Return options of an httpx client for agent servers.

    The environment's proxies are ignored: sandboxes are on the private network. Cookies are refused: ports of one host
    share them, so one sandbox's cookies would be sent to all others.
    """
    return {
        "trust_env": False,
        "headers": {"Accept-Encoding": "identity"},
        "cookies": CookieJar(DefaultCookiePolicy(allowed_domains=[])),
    }


def trust_nothing() -> SSLContext:
    """Return a context that trusts no certificate, and reads none from disk: agent servers have no TLS."""
    return SSLContext(PROTOCOL_TLS_CLIENT)
