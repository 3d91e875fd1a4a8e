"""Rate limits: the max requests of a key, such as an address, in a minute.

The algorithm is GCRA, which needs one number for each key: the time at which its requests would be spread out evenly. A
key may send all requests of a minute at once, and then as many as become free. The table has a limited size: the keys
that sent no request for the longest time are removed first.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from cachetools import LRUCache

from api.errors.limits import TooManyRequests

WINDOW_SECONDS = 60
# About 200 bytes each.
MAX_KEYS = 20_000


@dataclass(frozen=True)
class RateState:
    """The remaining requests of a key, in the fields of the IETF draft `ratelimit-headers`."""

    name: str
    limit: int
    remaining: int
    # Until all requests of a window are free again.
    reset_seconds: int
    # Until the next request is accepted; 0: this one was.
    retry_seconds: int = 0

    @property
    def headers(self) -> dict[str, str]:
        """The headers `RateLimit-Policy` and `RateLimit`, and for a rejected request `Retry-After` (RFC 9110)."""
        headers = {
            "RateLimit-Policy": f'"{self.name}";q={self.limit};w={WINDOW_SECONDS}',
            "RateLimit": f'"{self.name}";r={self.remaining};t={self.reset_seconds}',
        }
        return headers | ({"Retry-After": str(self.retry_seconds)} if self.retry_seconds else {})


class RateLimit:
    """The limit of one kind of request, for the keys of one process. Not thread-safe."""

    def __init__(self, name: str, limit: int, *, of: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Accept `limit` requests in a minute; 0: any number. `of` names the holders of keys in errors."""
        self.name, self._limit, self._of, self._clock = name, limit, of, clock
        self._even_at: LRUCache[str, float] = LRUCache(MAX_KEYS)

    def take(self, key: str) -> RateState | None:
        """Count a request, unless it exceeds the limit; return the state of its key, or None without a limit."""
        if not self._limit:
            return None
        now, spacing = self._clock(), WINDOW_SECONDS / self._limit
        even_at = max(self._even_at.get(key, now), now) + spacing
        excess = even_at - now - WINDOW_SECONDS
        if excess > 1e-6:  # a rounding error is no excess
            return self._standing(even_at - spacing - now, math.ceil(excess))
        self._even_at[key] = even_at
        return self._standing(even_at - now)

    def require(self, key: str) -> None:
        """Count a request.

        Raises:
            TooManyRequests: it exceeds the limit.
        """
        standing = self.take(key)
        if standing is not None and standing.retry_seconds:
            raise TooManyRequests(self.explain(), standing.retry_seconds, standing.headers)

    def explain(self) -> str:
        """Say why a request is rejected."""
        return f"more than {self._limit} {self.name} requests of {self._of} in a minute; retry after Retry-After"

    def _standing(self, taken_seconds: float, retry_seconds: int = 0) -> RateState:
        remaining = math.floor((WINDOW_SECONDS - taken_seconds) * self._limit / WINDOW_SECONDS + 1e-6)
        return RateState(self.name, self._limit, remaining, math.ceil(taken_seconds), retry_seconds)
