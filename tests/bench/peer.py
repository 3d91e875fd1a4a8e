"""Measurements of another V1 server by the same client: starts, pauses and lists. Without `?wait=`, the client polls.

The sandboxes are deleted afterwards. To compare, run the same against Agent Workspace, on the same machine and image.

The usual V1 server delays the requests of a client that sends more than ten a second, and refuses those of a client
that sends more than twenty. So each operation begins after a pause, and its status is polled with backoff.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from tests.bench.figures import Figure
from tests.bench.load import load, make_request, time_requests

T = TypeVar("T")
V1 = "/api/v1"
# The first delay between polls of a sandbox, its growth factor, and its maximum: no more than ten polls a second.
ASK_SECONDS, ASK_FACTOR, ASK_MAX_SECONDS = 0.01, 1.6, 0.2
# The pause after which rate limits no longer count earlier requests.
REST_SECONDS = 1.1
# The timeouts of a response and of an operation.
ANSWER_SECONDS, MAX_SECONDS = 60, 180
# The maximum number of tries of a request that gets a 429.
TRIES = 10
# The number of pauses in each run, and of sandboxes while lists are requested.
PAUSES, LISTED = 3, 3
CLIENTS, LIST_REQUESTS = 16, 10
LISTS = {"sandboxes": f"{V1}/sandboxes/search?limit=50", "conversations": f"{V1}/app-conversations/search?limit=50"}


def measure(url: str, key: str, runs: int, seconds: float = 3) -> Iterator[Figure]:
    """Measure a server; yield each figure as soon as it is known.

    Args:
        url: the server's URL, without a path.
        key: the API key, sent as a bearer token and as X-Session-API-Key, because servers differ in what they read.
        runs: the number of samples of a start and of each rate.
        seconds: how long to measure each rate.
    """
    headers = {"Authorization": f"Bearer {key}", "X-Session-API-Key": key} if key else {}
    with ExitStack() as stack:
        client = httpx.Client(base_url=url, headers=headers, timeout=ANSWER_SECONDS, trust_env=False)
        http = stack.enter_context(client)
        yield from _lifecycles(http, runs)
        for _ in range(LISTED):
            _await(http, stack.enter_context(_sandbox(http)), "RUNNING")
        for name, path in LISTS.items():
            yield from _list(url, f"list of {name}", make_request(path, headers), runs, seconds)


def _lifecycles(http: httpx.Client, runs: int) -> Iterator[Figure]:
    results = [_rested(partial(_lifecycle, http)) for _ in range(runs)]
    for name, each in zip(("start, POST to RUNNING", "pause", "resume"), zip(*results, strict=True), strict=True):
        yield Figure(name, list(each))


def _lifecycle(http: httpx.Client) -> tuple[list[float], list[float], list[float]]:
    """The seconds of a start, and of alternating pauses and resumes."""
    began = time.perf_counter()
    with _sandbox(http) as sandbox_id:
        _await(http, sandbox_id, "RUNNING")
        started, paused, resumed = [time.perf_counter() - began], [], []
        for _ in range(PAUSES):
            paused.append(_rested(partial(_set_status, http, sandbox_id, "pause", "PAUSED")))
            resumed.append(_set_status(http, sandbox_id, "resume", "RUNNING"))
    return started, paused, resumed


def _list(url: str, name: str, request: bytes, runs: int, seconds: float) -> Iterator[Figure]:
    one_by_one = partial(time_requests, url, [request] * LIST_REQUESTS, pause_seconds=ASK_MAX_SECONDS)
    yield Figure(f"{name}, now and then", [_rested(one_by_one) for _ in range(runs)])
    at_once = partial(load, url, [request], clients=1, seconds=seconds)
    yield Figure(f"{name}, one client", [[_rested(at_once).rate] for _ in range(runs)], unit="1/s")
    if urlsplit(url).hostname == "127.0.0.1":  # a rate limit counts all clients of one address together
        measured = partial(load, url, [request], clients=CLIENTS, seconds=seconds, own_addresses=True)
        yield Figure(f"{name}, {CLIENTS} clients", [[_rested(measured).rate] for _ in range(runs)], unit="1/s")


@contextmanager
def _sandbox(http: httpx.Client) -> Iterator[str]:
    """Start a sandbox and delete it after the block; yield its id."""
    sandbox_id = str(_send(http, "POST", f"{V1}/sandboxes")["id"])
    try:
        yield sandbox_id
    finally:
        # OpenHands' V1 server reads the id from the query.
        _send(http, "DELETE", f"{V1}/sandboxes/{sandbox_id}", sandbox_id=sandbox_id)


def _set_status(http: httpx.Client, sandbox_id: str, verb: str, status: str) -> float:
    """Request a status and wait for it; return the seconds."""
    began = time.perf_counter()
    _send(http, "POST", f"{V1}/sandboxes/{sandbox_id}/{verb}")
    _await(http, sandbox_id, status)
    return time.perf_counter() - began


def _await(http: httpx.Client, sandbox_id: str, status: str) -> None:
    """Wait until the server shows the sandbox with that status.

    Raises:
        RuntimeError: the sandbox failed or was deleted, or the wait took too long.
    """
    until, pause = time.perf_counter() + MAX_SECONDS, ASK_SECONDS
    while (shown := _send(http, "GET", f"{V1}/sandboxes", id=sandbox_id)[0] or {}).get("status") != status:
        if not shown or shown["status"] in ("ERROR", "MISSING") or time.perf_counter() > until:
            raise RuntimeError(f"sandbox {sandbox_id} should be {status} and is {shown or 'gone'}")
        time.sleep(pause)
        pause = min(pause * ASK_FACTOR, ASK_MAX_SECONDS)


def _send(http: httpx.Client, method: str, path: str, **params: str) -> Any:
    """Send a request, again after a 429 at the time that it names; return the body of the response."""
    response = http.request(method, path, params=params)
    for _ in range(TRIES):
        if response.status_code != httpx.codes.TOO_MANY_REQUESTS:
            break
        time.sleep(float(response.headers.get("Retry-After", REST_SECONDS)))
        response = http.request(method, path, params=params)
    return response.raise_for_status().json()


def _rested(act: Callable[[], T]) -> T:
    time.sleep(REST_SECONDS)
    return act()
