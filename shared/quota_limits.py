"""How much of everything one user may have, and what happens at the limit."""

from dataclasses import dataclass
from enum import StrEnum


class QuotaPolicy(StrEnum):
    """What happens to a wish for one more running sandbox than the quota allows."""

    # It is refused.
    REJECT = "reject"
    # The oldest running sandboxes of the user are paused for it, and named in the answer.
    PAUSE_OLDEST = "pause_oldest"


@dataclass(frozen=True)
class Quotas:
    """The limits of each user; 0 is no limit."""

    # Sandboxes that are wished to run.
    running: int = 0
    # Sandboxes that are not deleted.
    sandboxes: int = 0
    # Sandboxes made within 60 seconds, deleted or not.
    creates_per_minute: int = 0
    policy: QuotaPolicy = QuotaPolicy.REJECT

    def __bool__(self) -> bool:
        """Whether there is any limit."""
        return bool(self.running or self.sandboxes or self.creates_per_minute)


NO_QUOTAS = Quotas()
