"""Requests to git providers, and the errors for their responses."""

import asyncio
import json
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import httpx

from api.caller_slots import CallerSlots
from api.errors.upstream import UpstreamNotFound, UpstreamRateLimited, UpstreamTimeout, UpstreamUnreachable
from api.git.guarded_transport import GuardedTransport
from api.json_text import in_thread_if_large, load
from shared.agent_server.limits import FREE_CHUNKS, MIN_CHUNK_BYTES
from shared.agent_server.untrusted_http import HTTP_ERRORS, client_options, drop_location
from shared.errors import Forbidden, Invalid
from shared.json_documents import storable

# The timeout of a complete response.
SECONDS = 15.0
CONNECT_SECONDS = 5.0
# Concurrent requests of one user; further ones wait.
MAX_OF_CALLER = 8
MAX_BYTES = 8 * 1024 * 1024
# As much of an error is searched for words.
MAX_ERROR_BYTES = 1000
# A provider redirects requests for a renamed or moved repository. Only GET requests follow, and only on the same host.
MAX_REDIRECTS = 3
REDIRECTS = (301, 302, 307, 308)
RETRY_SECONDS = 60
MAX_RETRY_SECONDS = 3600
SECONDS_TEXT = re.compile("[0-9]{1,9}")


@dataclass(frozen=True)
class Reply:
    """A provider's response."""

    provider: str
    status: int
    headers: httpx.Headers
    # The JSON of a success; else None.
    document: Any = field(repr=False)
    # Whether the headers name a next page.
    has_next: bool = False
    # The beginning of an error; empty for a success.
    error: bytes = field(default=b"", repr=False)
    # The same host's URL that a redirect leads to.
    target: httpx.URL | None = field(default=None, repr=False)

    @property
    def is_forbidden(self) -> bool:
        """Whether the provider accepts the token, but does not allow this request with it."""
        return self.status == 403 and not self._is_rate_limited

    @property
    def _is_rate_limited(self) -> bool:
        # GitHub says so in the text only if too many requests were made at a time.
        named = self.headers.get("X-RateLimit-Remaining") == "0" or "Retry-After" in self.headers
        return self.status == 429 or named or b"rate limit" in self.error.lower()

    def require_document(self) -> Any:
        """Return the document of a success.

        Raises:
            Forbidden: the provider does not accept the token, or the token has no permission for this.
            UpstreamNotFound: the provider has no such object.
            Invalid: the provider does not accept the request.
            UpstreamRateLimited: the provider's rate limit is used up.
            UpstreamUnreachable: the provider failed.
        """
        if _is_success(self.status):
            return self.document
        self._raise_client_error()
        raise UpstreamUnreachable(f"{self.provider} responded with {self.status}")

    def rate_limited(self) -> UpstreamRateLimited:
        """Return the error for a rate limit that is reached."""
        return UpstreamRateLimited(self.provider, self._retry_seconds())

    def _raise_client_error(self) -> None:
        match self.status:
            case 401 | 203:
                raise Forbidden(f"{self.provider} does not accept the stored token: store another one")
            case 429 | 403 if self._is_rate_limited:
                raise self.rate_limited()
            case 403:
                raise Forbidden(
                    f"{self.provider} does not allow this with the stored token: a permission may be missing"
                )
            case 404:
                raise UpstreamNotFound(self.provider)
            case status if 400 <= status < 500:
                raise Invalid(f"{self.provider} does not accept this request: it responded with {status}")

    def _retry_seconds(self) -> int:
        text = self.headers.get("Retry-After", "")
        return min(int(text), MAX_RETRY_SECONDS) if SECONDS_TEXT.fullmatch(text) else RETRY_SECONDS


class GitClient:
    """The connections of one process, on one event loop. The first request creates the pool."""

    def __init__(self, listed: frozenset[str]) -> None:
        """Allow public hosts, and the hosts that the administrator lists."""
        self.listed = listed
        self._slots = CallerSlots(MAX_OF_CALLER)

    @cached_property
    def _client(self) -> httpx.AsyncClient:
        client = httpx.AsyncClient(
            transport=GuardedTransport(self.listed),
            timeout=httpx.Timeout(SECONDS, connect=CONNECT_SECONDS),
            **client_options(_move_location),
        )
        client.headers.update({"User-Agent": "agent-workspace", "Accept": "application/json"})
        return client

    async def request(self, provider: str, method: str, url: str, **request: Any) -> Reply:
        """Send a request, and return the provider's response, with any status.

        Args:
            url: without a query.
            request: `headers`, `params` or `json`, as httpx has them.

        Raises:
            Forbidden: the host is not allowed.
            UpstreamTimeout: the response takes too long.
            UpstreamUnreachable: there is no response, or it is encoded, too large, in too many chunks or not JSON.
        """
        try:
            async with asyncio.timeout(SECONDS), self._slots.of_caller():
                reply = await self._exchange(provider, method, url, request)
                redirects_left = MAX_REDIRECTS if method == "GET" else 0
                while reply.target is not None and redirects_left:
                    redirects_left -= 1
                    # The target has its own parameters.
                    reply = await self._exchange(provider, method, reply.target, {"headers": request.get("headers")})
                return reply
        except (TimeoutError, httpx.TimeoutException):
            raise UpstreamTimeout(f"{provider} did not respond in time") from None
        except HTTP_ERRORS:
            # The errors' texts may quote a header, and the token is in one.
            raise UpstreamUnreachable(f"{provider} can't be reached at its stored host") from None

    async def _exchange(self, provider: str, method: str, url: str | httpx.URL, request: dict[str, Any]) -> Reply:
        async with self._client.stream(method, url, **request) as response:
            content = await _read(provider, response)
            succeeds, has_next = _is_success(response.status_code), "next" in response.links
            document = await _parse(provider, content) if succeeds else None
            error = b"" if succeeds else content[:MAX_ERROR_BYTES]
            target = _find_target(response)
            return Reply(provider, response.status_code, response.headers, document, has_next, error, target)

    async def close(self) -> None:
        if "_client" in self.__dict__:
            await self._client.aclose()


async def _move_location(response: httpx.Response) -> None:
    """Move the address of a redirect to where httpx does not read it."""
    if (location := response.headers.get("Location")) is not None:
        response.extensions["location"] = location
    drop_location(response)


def _find_target(response: httpx.Response) -> httpx.URL | None:
    """The URL that a redirect leads to; None: there is none, or it is another host's, which must not get the token."""
    location = response.extensions.get("location")
    if response.status_code not in REDIRECTS or location is None:
        return None
    here = response.request.url
    there = here.join(location)
    is_same = (there.scheme, there.netloc, there.userinfo) == (here.scheme, here.netloc, b"")
    return there if is_same else None


def _is_success(status: int) -> bool:
    # For an expired token, Azure DevOps sends its page to sign in, with a 203.
    return 200 <= status < 300 and status != 203


async def _read(provider: str, response: httpx.Response) -> bytes:
    content = bytearray()
    # A part of an encoded response, which may be encoded several times, could inflate to any size in one call.
    if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raise UpstreamUnreachable(f"the response of {provider} is encoded, contrary to the request")
    chunks_left = FREE_CHUNKS
    async for chunk in response.aiter_bytes():
        content += chunk
        chunks_left -= 1
        if len(content) > MAX_BYTES:
            raise UpstreamUnreachable(f"the response of {provider} is larger than {MAX_BYTES} bytes")
        if chunks_left + len(content) // MIN_CHUNK_BYTES < 0:
            raise UpstreamUnreachable(f"the response of {provider} has too many chunks")
    return bytes(content)


async def _parse(provider: str, content: bytes) -> Any:
    try:
        return await in_thread_if_large(content, _load, content)
    except (ValueError, RecursionError):
        raise UpstreamUnreachable(f"the response of {provider} is not JSON") from None


def _load(content: bytes) -> Any:
    """Parse a document; replace halves of surrogate pairs, which no response and no URL can contain."""
    document = load(content)
    return json.loads(storable(json.dumps(document, ensure_ascii=False))) if b"\\u" in content else document
