"""Questions to git providers, and what their answers mean."""

import asyncio
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import httpx

from api.errors.upstream import Busy, NotThere, TooSlow, Unreached
from api.git.guarded_transport import GuardedTransport
from api.json_text import parse
from shared.errors import Forbidden, Invalid

# For a whole answer.
SECONDS = 15.0
CONNECT_SECONDS = 5.0
MAX_BYTES = 8 * 1024 * 1024
RETRY_SECONDS = 60
MAX_RETRY_SECONDS = 3600


@dataclass(frozen=True)
class Reply:
    """What a provider said."""

    provider: str
    status: int
    headers: httpx.Headers
    # Of a success.
    document: Any = field(repr=False)
    # Whether its headers name a page after this one.
    more: bool = False

    def need(self) -> Any:
        """The document of a success.

        Raises:
            Forbidden: the token is not good, or not good for this.
            NotThere: the provider has no such thing.
            Invalid: it does not understand what is asked.
            Busy: it wants to be asked later.
            Unreached: it has failed.
        """
        if _is_success(self.status):
            return self.document
        self._refuse()
        raise Unreached(f"{self.provider} answered {self.status}")

    def _refuse(self) -> None:
        is_empty = self.headers.get("X-RateLimit-Remaining") == "0" or "Retry-After" in self.headers
        match self.status:
            case 401:
                raise Forbidden(f"{self.provider} does not accept the stored token: store another one")
            case 429 | 403 if self.status == 429 or is_empty:
                raise Busy(self.provider, self._retry_seconds())
            case 403:
                raise Forbidden(f"{self.provider} refuses this with the stored token: it may lack a permission")
            case 404:
                raise NotThere(self.provider)
            case status if 400 <= status < 500:
                raise Invalid(f"{self.provider} does not take this request: it answered {status}")

    def _retry_seconds(self) -> int:
        text = self.headers.get("Retry-After", "")
        return min(int(text), MAX_RETRY_SECONDS) if text.isascii() and text.isdigit() else RETRY_SECONDS


class GitClient:
    """The connections of one process, on one event loop; they are made when the first is needed."""

    def __init__(self, listed: frozenset[str]) -> None:
        """Ask public hosts, and those that the administrator lists."""
        self.listed = listed

    @cached_property
    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=GuardedTransport(self.listed),
            timeout=httpx.Timeout(SECONDS, connect=CONNECT_SECONDS),
            follow_redirects=False,
            trust_env=False,
            headers={"User-Agent": "agent-workspace", "Accept": "application/json"},
        )

    async def ask(self, provider: str, method: str, url: str, **request: Any) -> Reply:
        """A provider's answer, whatever its status.

        Args:
            provider: how it is called in errors.
            method: of the request.
            url: without a query.
            request: `headers`, `params` or `json`, as httpx has them.

        Raises:
            Forbidden: the host is not one that is asked.
            TooSlow: there is no answer in time.
            Unreached: there is none, or it is no JSON.
        """
        try:
            async with asyncio.timeout(SECONDS), self._client.stream(method, url, **request) as response:
                document = await _read(provider, response)
                return Reply(provider, response.status_code, response.headers, document, "next" in response.links)
        except (TimeoutError, httpx.TimeoutException):
            raise TooSlow(f"{provider} did not answer in time") from None
        except (httpx.HTTPError, httpx.InvalidURL):
            # Their texts may name a header, and a header may be the token.
            raise Unreached(f"{provider} can't be reached at the host that is stored for it") from None

    async def close(self) -> None:
        """Close all connections."""
        if "_client" in self.__dict__:
            await self._client.aclose()


def _is_success(status: int) -> bool:
    return 200 <= status < 300


async def _read(provider: str, response: httpx.Response) -> Any:
    """The document of a success; nothing is made of other answers."""
    content = bytearray()
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > MAX_BYTES:
            raise Unreached(f"the answer of {provider} is larger than {MAX_BYTES} bytes")
    try:
        return await parse(bytes(content)) if _is_success(response.status_code) else None
    except (ValueError, RecursionError):
        raise Unreached(f"the answer of {provider} is no JSON") from None
