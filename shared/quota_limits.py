"""The limits of one user, and what happens at a limit."""

from dataclasses import dataclass
from enum import StrEnum


class QuotaPolicy(StrEnum):
    """What happens to a request for one more running sandbox than the quota allows."""

    # The request is rejected.
    REJECT = "reject"
    # The user's oldest running sandboxes are paused, and named in the response.
    PAUSE_OLDEST = "pause_oldest"


@dataclass(frozen=True)
class Quotas:
    """The limits of each user; 0: no limit."""

    # Sandboxes whose desired state is RUNNING.
    running: int = 0
    # Sandboxes that are not deleted.
    sandboxes: int = 0
    # Sandboxes created within 60 seconds, deleted or not.
    creates_per_minute: int = 0
    policy: QuotaPolicy = QuotaPolicy.REJECT

    def __bool__(self) -> bool:
        """Whether there is any limit."""
        return bool(self.running or self.sandboxes or self.creates_per_minute)


NO_QUOTAS = Quotas()
