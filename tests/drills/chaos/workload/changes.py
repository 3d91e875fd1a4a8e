"""Followers of the change feed: one per user, which must miss no change whatever faults occur."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx

from tests.drills.chaos.workload.fleet import Fleet
from tests.drills.responses import is_unavailable
from tests.factories import ApiUser
from tests.services import http

CHANGES = "/api/v1/changes"
READ_SECONDS = 2.0
RETRY_SECONDS = 0.2


class ChangeFollower:
    """Follows one user's change feed in a thread, and resumes after the last id whenever the stream ends.

    Attributes:
        statuses: the last status of each sandbox in the feed.
        gaps: the places where an id did not follow the previous one, and refusals.
        resets: the number of reset events, which say that the feed could not resume; the first stream begins with one.
    """

    def __init__(self, fleet: Fleet, user: ApiUser) -> None:
        self.user = user
        self.statuses: dict[str, str] = {}
        self.gaps: list[str] = []
        self.resets = 0
        self._fleet = fleet
        self._last: int | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start following."""
        self._thread.start()

    def stop(self) -> None:
        """Stop following."""
        self._stopped.set()
        self._thread.join()

    def violations(self, listed: dict[str, Any]) -> list[str]:
        """The gaps and resets of the feed, and the sandboxes that it lacks or shows with a wrong last status."""
        wrong = [f"changes of {self.user.id}: {gap}" for gap in self.gaps]
        if self.resets > 1:
            wrong.append(f"changes of {self.user.id}: {self.resets} resets in a feed that was followed without a break")
        for sandbox_id, status in list(self.statuses.items()):
            _, item = listed.get(sandbox_id, (None, {"status": "DELETED"}))
            if item["status"] != status:
                wrong.append(
                    f"changes of {self.user.id}: sandbox {sandbox_id} is {item['status']}, the feed has {status}"
                )
        missing = [sandbox_id for sandbox_id in self._own(listed) if sandbox_id not in self.statuses]
        return wrong + [f"changes of {self.user.id}: sandbox {sandbox_id} is not in the feed" for sandbox_id in missing]

    def _own(self, listed: dict[str, Any]) -> list[str]:
        return [sandbox_id for sandbox_id, (user, _) in listed.items() if user.id == self.user.id]

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._follow()
            except httpx.TransportError:
                self._stopped.wait(RETRY_SECONDS)

    def _follow(self) -> None:
        headers = self.user.headers | ({} if self._last is None else {"Last-Event-ID": str(self._last)})
        url, timeout = self._fleet.site.service.url + CHANGES, httpx.Timeout(READ_SECONDS)
        with httpx.stream("GET", url, headers=headers, timeout=timeout, verify=http.NO_CERTIFICATES) as response:
            if not response.is_success:
                self._refuse(response)
                return
            for event in _read_events(response):
                if self._stopped.is_set():
                    return
                if event:
                    self._take(event)

    def _refuse(self, response: httpx.Response) -> None:
        if not is_unavailable(response):
            self.gaps.append(f"the response is a {response.status_code}")
        self._stopped.wait(RETRY_SECONDS)

    def _take(self, event: dict[str, str]) -> None:
        number = int(event["id"])
        if event["event"] == "reset":
            self.resets += 1
        else:
            if self._last is not None and number != self._last + 1:
                self.gaps.append(f"{number} follows {self._last}")
            change = json.loads(event["data"])
            if change["kind"] == "sandbox":
                self.statuses[change["id"]] = change["status"]
        self._last = number


def _read_events(response: httpx.Response) -> Iterator[dict[str, str]]:
    """The events of a stream, and an empty one for each comment that the service sends to keep the connection alive."""
    event: dict[str, str] = {}
    for line in response.iter_lines():
        name, _, value = line.partition(": ")
        if line and name:
            event[name] = value
        elif not line:
            yield event if "data" in event else {}
            event = {}
