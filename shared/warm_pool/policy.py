"""The plan of a warm pool: which sandboxes to remove, and how many to boot. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from shared.clock import now

# The backoff after the first failure, and its maximum. It doubles with each failure.
FIRST_BACKOFF = timedelta(seconds=5)
MAX_BACKOFF = timedelta(minutes=10)
# A warm sandbox of this age is replaced: agent servers are not built to idle indefinitely.
OLD = timedelta(hours=24)


@dataclass(frozen=True)
class WarmSandbox:
    """A sandbox without an owner.

    Args:
        is_ready: it could be claimed now.
        is_unusable: it failed, its spec or its image has changed, or its node is cordoned.
        is_old: it could be claimed, but should be replaced.
    """

    id: str
    is_ready: bool = False
    is_unusable: bool = False
    is_old: bool = False


@dataclass(frozen=True)
class PoolPlan:
    """The sandboxes to remove from a pool, and the number to boot."""

    retired: list[str] = field(default_factory=list)
    wanted: int = 0


def plan_pool(sandboxes: Sequence[WarmSandbox], *, target: int, max_size: int) -> PoolPlan:
    """Compute what a pool needs now.

    Args:
        sandboxes: in the order in which they are claimed.
        target: the number that should be ready.
        max_size: the max number at a time. Sandboxes that are being deleted are not counted.
    """
    unusable = [sandbox for sandbox in sandboxes if sandbox.is_unusable]
    usable = [sandbox for sandbox in sandboxes if not sandbox.is_unusable]
    young = [sandbox for sandbox in usable if not sandbox.is_old]
    surplus = _surplus(usable, young, target=target, max_size=max_size)
    wanted = min(target - len(young), max_size - (len(usable) - len(surplus)))
    return PoolPlan([sandbox.id for sandbox in (*unusable, *surplus)], max(0, wanted))


def backoff_until(failures: int, failed_at: datetime | None) -> datetime | None:
    """Return the end of the backoff after `failures` failures in a row. None: a sandbox may boot."""
    if not failures or failed_at is None or failed_at > now():  # written by a wrong clock
        return None
    until = failed_at + min(FIRST_BACKOFF * 2 ** min(failures - 1, 16), MAX_BACKOFF)
    return until if until > now() else None


def _surplus(
    usable: Sequence[WarmSandbox], young: Sequence[WarmSandbox], *, target: int, max_size: int
) -> list[WarmSandbox]:
    """Old ones when enough others are ready, or when the pool is full; then young ones above the target."""
    old = [sandbox for sandbox in usable if sandbox.is_old]
    ready = [sandbox for sandbox in young if sandbox.is_ready]
    replaced = old[: max(0, len(ready) + len(old) - target)]
    if not replaced and len(usable) >= max_size and len(ready) == len(young):
        replaced = old[:1]
    booting = [sandbox for sandbox in young if not sandbox.is_ready]
    return [*replaced, *[*booting, *reversed(ready)][: max(0, len(young) - target)]]
