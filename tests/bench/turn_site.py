"""One checkout's service for `tests.bench.turns`: runs the measurement that each line of its input names.

It runs with the code of that checkout, which may be older, so it uses only what both checkouts have.
"""

import json
import sys
import time
from contextlib import ExitStack

import httpx

from shared.sql import locks
from tests.bench.site import Site, running_site
from tests.bench.starts import delete, timed_start
from tests.waiting import eventually

MARK = "@"
BOOT_SECONDS = 400


class TurnSite:
    """A running service with a warm pool, and the sandboxes that were claimed from it."""

    def __init__(self, site: Site, image: str) -> None:
        self._site, self._image = site, image
        self._started: list[str] = []
        self._client = httpx.Client(trust_env=False, timeout=60)

    def measure_starts(self, size: int, wait: "Wait") -> None:
        """Fill the pool, and measure a start for each line. The pool is not refilled until the end, to save CPU."""
        self._site.set_pool(self._image, size)
        self._site.await_pool(self._image, size, deadline_seconds=BOOT_SECONDS)
        with ExitStack() as stack:
            session = stack.enter_context(self._site.service.database.transaction())
            eventually(lambda: locks.try_lock_pool(session, self._image))
            print_result(0)
            for _ in range(size):
                wait()
                seconds, sandbox_id = timed_start(self._site, self._image)
                self._started.append(sandbox_id)
                print_result(seconds)
        wait()
        for sandbox_id in self._started[:-1]:
            delete(self._site, sandbox_id)
        self._started = self._started[-1:]
        self._site.set_pool(self._image, 0)
        print_result(0)

    def measure(self, verb: str) -> None:
        """Measure a pause, a resume, or a request to the last sandbox."""
        sandbox_id = self._started[-1]
        if verb == "request":
            key = self._site.client.read("/api/v1/sandboxes", id=sandbox_id)[0]["session_api_key"]
            url = f"{self._site.service.url}/sandbox/{sandbox_id}/api/conversations/count"
            began = time.perf_counter()
            response = self._client.get(url, headers={"X-Session-API-Key": key})
        else:
            began = time.perf_counter()
            response = self._site.client.post(f"/api/v1/sandboxes/{sandbox_id}/{verb}", params={"wait": 10})
        seconds = time.perf_counter() - began
        assert response.status_code == 200, response.text
        print_result(seconds)


class Wait:
    """Waits for the next line, whose content does not matter."""

    def __call__(self) -> None:
        sys.stdin.readline()


def print_result(seconds: float) -> None:
    """Print one result."""
    sys.stdout.write(f"{MARK}{json.dumps(seconds)}\n")
    sys.stdout.flush()


def main(image: str) -> None:
    """Execute the lines of standard input until it ends."""
    with running_site("postgresql") as site:
        turns = TurnSite(site, image)
        print_result(0)
        while word := sys.stdin.readline().strip():
            verb, _, size = word.partition(" ")
            if verb == "starts":
                turns.measure_starts(int(size), Wait())
            else:
                turns.measure(verb)


if __name__ == "__main__":
    main(sys.argv[1])
