"""Clients' writes of their settings, and a check that the last acknowledged value is still stored."""

import itertools
import threading

from tests.drills.chaos.workload.fleet import Fleet
from tests.drills.requests import Outcome
from tests.factories import ApiUser

SETTINGS = "/api/settings"
# The initial value.
FIRST_NUMBER = 100


class UserSettings:
    """Increments a setting of each user, with one write per user at a time, so that the order is known."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._numbers = itertools.count(FIRST_NUMBER + 1)
        self._locks = {user.id: threading.Lock() for user in fleet.users}
        self._acknowledged = {user.id: FIRST_NUMBER for user in fleet.users}
        # A write without a response may still be pending in a frozen process, and may be stored at any time.
        self._pending: dict[str, set[int]] = {user.id: set() for user in fleet.users}

    def store(self, user: ApiUser) -> None:
        """Store the next number in the user's settings."""
        with self._locks[user.id]:
            number = next(self._numbers)
            response = self._fleet.send("POST", SETTINGS, user.headers, json={"max_iterations": number})
            if response is None or response.status_code == 503:
                self._pending[user.id].add(number)
                return
            assert response.is_success, f"settings were refused: {response.status_code} {response.text}"
            self._acknowledged[user.id] = number
        self._fleet.count("settings", Outcome.OK)

    def settle(self) -> None:
        """Treat the stored values as acknowledged: no write is pending any more."""
        for user in self._fleet.users:
            self._acknowledged[user.id] = self._stored(user)
            self._pending[user.id].clear()

    def violations(self) -> list[str]:
        """Values that an acknowledged write should have replaced, or that no request sent."""
        return [wrong for user in self._fleet.users for wrong in self._check(user)]

    def _check(self, user: ApiUser) -> list[str]:
        possible = {self._acknowledged[user.id]} | self._pending[user.id]
        stored = self._stored(user)
        return [] if stored in possible else [f"settings of {user.id}: {stored} is stored, not one of {possible}"]

    def _stored(self, user: ApiUser) -> int:
        return int(self._fleet.read(user, SETTINGS)["max_iterations"])
