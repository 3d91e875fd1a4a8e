"""Check of the node's door. Heartbeats report its last result and do not wait for it."""

from functools import partial

import httpx

from shared.agent_server.door import API_CHECK, ERROR_HEADER
from shared.agent_server.errors import DoorUnavailable
from shared.agent_server.limits import CONNECT_SECONDS
from shared.agent_server.untrusted_http import HTTP_ERRORS
from worker.agent_server.transport import check_door, timeout

# Timeout of the API's response. The door waits for `CONNECT_SECONDS` until it reports that the API can't be reached.
API_SECONDS = CONNECT_SECONDS + 3.0
REJECTED = "403"
UNREACHED = "the node's door does not reach the API at AW_SANDBOX_API_URL, so reports of the node's sandboxes wait"


class DoorCheck:
    """The last result of a check of the door. A check may take seconds."""

    def __init__(self, http: httpx.Client, url: str) -> None:
        """Check the door at this URL with this client. The door counts as usable before the first check."""
        self._http, self._url = http, url
        self._problem: str | None = None

    def find_problem(self) -> str | None:
        """Return what of the door does not work, as of the last check; None: everything does."""
        return self._problem

    def run(self) -> bool:
        """Check the door. Returns whether the result of `find_problem` has changed between a problem and none."""
        before, self._problem = self._problem, find_door_problem(self._http, self._url)
        return (before is None) != (self._problem is None)


def find_door_problem(client: httpx.Client, url: str) -> str | None:
    """Return what of the node's door at this URL does not work; None: it responds, and reaches the API."""
    try:
        check_door(partial(client.send, stream=True), httpx.URL(f"{url}/"))
    except DoorUnavailable as error:
        return f"{error} ({url})"
    return _find_api_problem(client, url)


def _find_api_problem(client: httpx.Client, url: str) -> str | None:
    try:
        with timeout(API_SECONDS), client.stream("GET", f"{url}{API_CHECK}") as response:
            status = response.headers.get(ERROR_HEADER)
    except HTTP_ERRORS as error:
        status = type(error).__name__
    # A door of an earlier version rejects the path.
    return None if status in (None, REJECTED) else f"{UNREACHED} ({status})"
