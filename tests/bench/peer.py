"""Another V1 server, measured by the same client: starts, pauses and lists. It promises no `?wait=`, so we ask again.

What it starts is deleted. Nothing is compared here: run the same against ours, on the same machine and image.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import httpx

from tests.bench.figures import Figure, Runs
from tests.bench.load import load, make_request, time_requests

V1 = "/api/v1"
# Between two questions for a sandbox's status, and how long one may take, in seconds.
ASK_SECONDS = 0.01
LONG = 180
CLIENTS = 16
LISTS = {"sandboxes": f"{V1}/sandboxes/search?limit=50", "conversations": f"{V1}/app-conversations/search?limit=50"}


def measure(url: str, key: str, runs: int) -> Iterator[Figure]:
    """Each figure as soon as it is there.

    Args:
        url: where the server listens, without a path.
        key: sent as a bearer token and as X-Session-API-Key: servers differ in what they read.
    """
    headers = {"Authorization": f"Bearer {key}", "X-Session-API-Key": key} if key else {}
    with httpx.Client(base_url=url, headers=headers, timeout=LONG, trust_env=False) as http:
        yield from _lives(http, runs)
        for name, path in LISTS.items():
            http.get(path).raise_for_status()
            yield from _list(url, name, make_request(path, key), runs)


def _lives(http: httpx.Client, runs: int) -> Iterator[Figure]:
    found: dict[str, Runs] = {step: [] for step in ("start, POST to RUNNING", "pause", "resume")}
    for _ in range(runs):
        sandbox_id = ""
        try:
            began = time.perf_counter()
            sandbox_id = str(_post(http, f"{V1}/sandboxes")["id"])
            _await(http, sandbox_id, "RUNNING")
            found["start, POST to RUNNING"].append([time.perf_counter() - began])
            for verb, status in (("pause", "PAUSED"), ("resume", "RUNNING")):
                found[verb].append([_timed(partial(_wish, http, sandbox_id, verb, status))])
        finally:
            with suppress(httpx.HTTPError):
                # V1's own server reads the id in the query, too.
                http.delete(f"{V1}/sandboxes/{sandbox_id}", params={"sandbox_id": sandbox_id})
    yield from (Figure(step, each) for step, each in found.items())


def _list(url: str, name: str, request: bytes, runs: int) -> Iterator[Figure]:
    yield Figure(f"list of {name}, one client", [time_requests(url, [request] * 50) for _ in range(runs)])
    rates = [[load(url, [request], clients=CLIENTS, seconds=2).rate] for _ in range(runs)]
    yield Figure(f"list of {name}, {CLIENTS} clients", rates, unit="1/s")


def _wish(http: httpx.Client, sandbox_id: str, verb: str, status: str) -> None:
    _post(http, f"{V1}/sandboxes/{sandbox_id}/{verb}")
    _await(http, sandbox_id, status)


def _post(http: httpx.Client, path: str) -> dict[str, Any]:
    answer: dict[str, Any] = http.post(path).raise_for_status().json()
    return answer


def _await(http: httpx.Client, sandbox_id: str, status: str) -> None:
    until = time.perf_counter() + LONG
    while (shown := http.get(f"{V1}/sandboxes", params={"id": sandbox_id}).json()[0])["status"] != status:
        if shown["status"] in ("ERROR", "MISSING") or time.perf_counter() > until:
            raise RuntimeError(f"sandbox {sandbox_id} was to be {status} and is {shown}")
        time.sleep(ASK_SECONDS)


def _timed(act: Callable[[], None]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began
