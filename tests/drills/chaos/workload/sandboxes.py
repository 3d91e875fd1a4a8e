"""Clients' requests about sandboxes: start, pause, stop, resume, delete, list, and traffic that resumes them."""

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from shared.states import Desired
from tests.drills.chaos.site import (
    BROKEN_IMAGE,
    CONVERSATIONAL_IMAGE,
    QUOTA_RUNNING,
    QUOTA_SANDBOXES,
    SLOW_IMAGE,
    WARM_IMAGE,
)
from tests.drills.chaos.workload.fleet import Fleet
from tests.drills.history import SANDBOXES, RecordingClient
from tests.drills.requests import Outcome, Verb
from tests.factories import ApiUser
from tests.services.engine import TINY_IMAGE

# Short enough to expire within a round.
IDLE_DEADLINES = {"freeze_after_seconds": 3, "stop_after_seconds": 3, "delete_after_seconds": 3}
MAX_AGE_SECONDS = 12
# The maximum time from a deadline to its effect while there are no faults.
DEADLINE_LAG_SECONDS = 30.0
REPLAYED = 0.2


class Sandboxes:
    """Sends requests about sandboxes, and checks their effects afterwards."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._images = [
            TINY_IMAGE,
            CONVERSATIONAL_IMAGE,
            WARM_IMAGE,
            fleet.site.registry.image,
            SLOW_IMAGE,
            BROKEN_IMAGE,
        ]

    def start(self, rng: random.Random) -> None:
        """Start a sandbox of a random spec, sometimes with deadlines of its own."""
        user = rng.choice(self._fleet.users)
        image = rng.choices(self._images, [30, 30, 20, 10, 6, 4])[0]
        deadlines = rng.choices([None, IDLE_DEADLINES, {"max_age_seconds": MAX_AGE_SECONDS}], [80, 10, 10])[0]
        began = time.monotonic()
        sandbox_id = self._fleet.client(user).start(image, deadlines, replay=rng.random() < REPLAYED)
        if sandbox_id is None:
            return
        self._note_deadlines(sandbox_id, deadlines)
        if image == CONVERSATIONAL_IMAGE:
            self._fleet.accepting.add(sandbox_id)
        self._fleet.requested_at[sandbox_id] = began
        self._fleet.alive[sandbox_id] = user

    def send(self, act: Callable[[str], None], sandbox_id: str) -> None:
        """Pause, stop or resume a sandbox."""
        self._fleet.touch(sandbox_id)
        act(sandbox_id)

    def delete(self, client: RecordingClient, sandbox_id: str) -> None:
        """Delete a sandbox."""
        self.send(client.delete, sandbox_id)
        self._fleet.forget(sandbox_id)

    def wake(self, client: RecordingClient, sandbox_id: str) -> None:
        """Send a request through the proxy to a sandbox, which resumes it if it is paused.

        A running sandbox is not changed, so the response does not say whether the sandbox was resumed.
        """
        self._fleet.touch(sandbox_id)
        history = self._fleet.history
        call = history.invoke(Verb.RESUME, sandbox_id)
        path = f"/sandbox/{sandbox_id}/api/conversations/count"
        response = self._fleet.send_traffic(path, client.user)
        history.complete(call, Outcome.LOST, Verb.RESUME, sandbox_id)
        self._fleet.count("wake", "ok" if response == 200 else "no answer" if response is None else str(response))

    def list_own(self, client: RecordingClient) -> None:
        """List the user's sandboxes. Whatever part is down, the page must not contain another user's sandboxes."""
        response = self._fleet.send("GET", f"{SANDBOXES}/search", client.user.headers)
        if response is not None and response.is_success:
            owners = {item["created_by_user_id"] for item in response.json()["items"]}
            assert owners <= {client.user.id}, f"{client.user.id} was shown sandboxes of {owners}"
            self._fleet.count("list", "ok")

    def adopt(self, listed: dict[str, tuple[ApiUser, dict[str, Any]]]) -> None:
        """Record all listed sandboxes: a start without a response may have created one."""
        for sandbox_id, (_, item) in listed.items():
            if sandbox_id not in self._fleet.alive:
                self._note_deadlines(sandbox_id, _own_deadlines(item))
        self._fleet.alive = {sandbox_id: user for sandbox_id, (user, _) in listed.items()}

    def violations(self) -> list[str]:
        """Exceeded quotas and missed deadlines, as the API shows them. Call it only while there are no faults."""
        listed = self._fleet.listed()
        return [*self._over_quota(listed), *self._overdue(listed)]

    def _note_deadlines(self, sandbox_id: str, deadlines: dict[str, int] | None) -> None:
        if deadlines == IDLE_DEADLINES:
            self._fleet.deadlines[sandbox_id] = {Desired.PAUSED, Desired.STOPPED, Desired.DELETED}
        elif deadlines:
            self._fleet.deadlines[sandbox_id] = {Desired.DELETED}
            self._fleet.expires[sandbox_id] = time.monotonic() + MAX_AGE_SECONDS

    @staticmethod
    def _over_quota(listed: dict[str, Any]) -> list[str]:
        owned = Counter(user.id for user, _ in listed.values())
        running = Counter(user.id for user, item in listed.values() if item["desired_status"] == Desired.RUNNING)
        over = [
            f"{owner} has {count} sandboxes, the quota is {QUOTA_SANDBOXES}"
            for owner, count in owned.items()
            if count > QUOTA_SANDBOXES
        ]
        return over + [
            f"{owner} has {count} sandboxes to run, the quota is {QUOTA_RUNNING}"
            for owner, count in running.items()
            if count > QUOTA_RUNNING
        ]

    def _overdue(self, listed: dict[str, Any]) -> list[str]:
        limit = time.monotonic() - DEADLINE_LAG_SECONDS
        late = [sandbox_id for sandbox_id, at in list(self._fleet.expires.items()) if at < limit]
        return [
            f"sandbox {sandbox_id} is past its maximum age and still listed"
            for sandbox_id in late
            if sandbox_id in listed
        ]


def _own_deadlines(item: dict[str, Any]) -> dict[str, int] | None:
    """The deadlines that `start` gave to a listed sandbox; None: those of its spec."""
    own = (IDLE_DEADLINES, {"max_age_seconds": MAX_AGE_SECONDS})
    return next((deadlines for deadlines in own if deadlines.items() <= item.items()), None)
