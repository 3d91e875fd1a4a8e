"""Check of the node's door. Heartbeats report its last result and do not wait for it."""

import httpx

from worker.agent_server.transport import find_door_problem


class DoorCheck:
    """The last result of a check of the door. A check may take seconds."""

    def __init__(self, http: httpx.Client, url: str) -> None:
        """Check the door at this URL with this client. The door counts as usable before the first check."""
        self._http, self._url = http, url
        self._problem: str | None = None

    def find_problem(self) -> str | None:
        """Return why the door can't be used, as of the last check; None: it can."""
        return self._problem

    def run(self) -> bool:
        """Check the door. Returns whether the result of `find_problem` has changed between a problem and none."""
        before, self._problem = self._problem, find_door_problem(self._http, self._url)
        return (before is None) != (self._problem is None)
