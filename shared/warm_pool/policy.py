"""Warm pools: sandboxes that are booted before anybody asks for them. What a pool needs next, as a pure function."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from shared.clock import now

# After the first failure, and the longest, doubling in between.
FIRST_REST = timedelta(seconds=5)
MAX_REST = timedelta(minutes=10)
# What has waited so long is replaced: an agent server is not made to idle for ever.
OLD = timedelta(hours=24)


@dataclass(frozen=True)
class WarmSandbox:
    """A sandbox without an owner.

    Args:
        is_ready: it could be claimed now.
        is_useless: it failed, or its spec, its image or its node is not what it was.
        is_old: it could be claimed, and should be replaced.
    """

    id: str
    is_ready: bool = False
    is_useless: bool = False
    is_old: bool = False


@dataclass(frozen=True)
class PoolPlan:
    """What a pool needs: members to be deleted, and how many more to be made."""

    retired: list[str] = field(default_factory=list)
    wanted: int = 0


def plan_pool(members: Sequence[WarmSandbox], *, target: int, most: int) -> PoolPlan:
    """What a pool needs now.

    Args:
        members: in the order in which they are claimed.
        target: so many should be ready.
        most: so many may there be at a time; what is being deleted is not counted.
    """
    useless = [member for member in members if member.is_useless]
    kept = [member for member in members if not member.is_useless]
    young = [member for member in kept if not member.is_old]
    surplus = _surplus(kept, young, target=target, most=most)
    wanted = min(target - len(young), most - (len(kept) - len(surplus)))
    return PoolPlan([member.id for member in (*useless, *surplus)], max(0, wanted))


def rests_until(failures: int, failed_at: datetime | None) -> datetime | None:
    """Until when no member is made, after so many failures in a row; None: one may be made."""
    if not failures or failed_at is None or failed_at > now():  # by a clock that was wrong
        return None
    until = failed_at + min(FIRST_REST * 2 ** min(failures - 1, 16), MAX_REST)
    return until if until > now() else None


def _surplus(kept: Sequence[WarmSandbox], young: Sequence[WarmSandbox], *, target: int, most: int) -> list[WarmSandbox]:
    """Old ones once there are enough others, or no room for another beside them; then the latest of too many."""
    old = [member for member in kept if member.is_old]
    ready = [member for member in young if member.is_ready]
    replaced = old[: max(0, len(ready) + len(old) - target)]
    if not replaced and len(kept) >= most and len(ready) == len(young):
        replaced = old[:1]
    booting = [member for member in young if not member.is_ready]
    return [*replaced, *[*booting, *reversed(ready)][: max(0, len(young) - target)]]
