"""Clients' writes of their settings, and a check that the last acknowledged value is still stored."""

import itertools
import threading

from tests.drills.chaos.workload.fleet import Fleet
from tests.drills.requests import Outcome
from tests.factories import Person

SETTINGS = "/api/settings"
# The initial value.
FIRST_NUMBER = 100


class UserSettings:
    """Increments a setting of each user, with one write per user at a time, so that the order is known."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._numbers = itertools.count(FIRST_NUMBER + 1)
        self._locks = {person.id: threading.Lock() for person in fleet.people}
        self._acknowledged = {person.id: FIRST_NUMBER for person in fleet.people}
        # A write without a response may still be pending in a frozen process, and may be stored at any time.
        self._pending: dict[str, set[int]] = {person.id: set() for person in fleet.people}

    def store(self, person: Person) -> None:
        """Store the next number in the user's settings."""
        with self._locks[person.id]:
            number = next(self._numbers)
            answer = self._fleet.send("POST", SETTINGS, person.headers, json={"max_iterations": number})
            if answer is None or answer.status_code == 503:
                self._pending[person.id].add(number)
                return
            assert answer.is_success, f"settings were refused: {answer.status_code} {answer.text}"
            self._acknowledged[person.id] = number
        self._fleet.count("settings", Outcome.OK)

    def settle(self) -> None:
        """Treat the stored values as acknowledged: no write is pending any more."""
        for person in self._fleet.people:
            self._acknowledged[person.id] = self._stored(person)
            self._pending[person.id].clear()

    def violations(self) -> list[str]:
        """Values that an acknowledged write should have replaced, or that no request sent."""
        return [wrong for person in self._fleet.people for wrong in self._check(person)]

    def _check(self, person: Person) -> list[str]:
        possible = {self._acknowledged[person.id]} | self._pending[person.id]
        stored = self._stored(person)
        return [] if stored in possible else [f"settings of {person.id}: {stored} is stored, not one of {possible}"]

    def _stored(self, person: Person) -> int:
        return int(self._fleet.read(person, SETTINGS)["max_iterations"])
