"""A firewall in memory."""

from collections.abc import Collection

from worker.network.firewall import FirewallError
from worker.network.rules import Allowed, RulesChange


class FakeFirewall:
    """Implementation of `worker.network.firewall.Firewall`. `writes` and `changes` count the calls."""

    def __init__(self) -> None:
        self.allowed: Allowed | None = None
        self.writes = self.changes = 0
        # What was disconnected, in order.
        self.disconnected: list[str] = []
        # Why every call fails; None: none does.
        self.problem: str | None = None
        self.fails_to_change = False

    def read(self) -> Allowed | None:
        self._enter()
        return self.allowed

    def write(self, allowed: Allowed) -> None:
        self._enter()
        self.writes += 1
        self.allowed = allowed

    def change(self, change: RulesChange) -> None:
        self._enter()
        if not change:
            return
        if self.fails_to_change or self.allowed is None:
            raise FirewallError("nft failed")
        self.changes += 1
        self.allowed = (self.allowed - change.remove) | change.add

    def disconnect(self, models: Collection[str]) -> None:
        self._enter()
        self.disconnected += models

    def remove(self) -> None:
        self._enter()
        self.allowed = None

    def _enter(self) -> None:
        if self.problem is not None:
            raise FirewallError(self.problem)
