"""How long one request delays all others: the slowest response of `/health` during the request, and without it."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from shared.states import Stage
from tests.bench.figures import Figure, Runs
from tests.bench.load import get, make_request, post, time_while
from tests.bench.site import Site
from tests.bench.webhooks import make_sender
from tests.factories import make_event, make_start_task

SAMPLES = 5
HEALTH = make_request("/health")
SETTINGS = "/api/v1/settings"
MEGABYTE = 1024 * 1024
GOAL_SECONDS = 0.05
# The most expensive bodies for each step: the search for NUL, the count, the parser, the validation, the unescaping.
BODIES: Mapping[str, bytes] = {
    "a body that ends in no JSON": b'{"a": "\\u0000", "b": [' + b"1," * (2 * MEGABYTE - 100),
    "4 MB of empty lists": b"[" + b"[]," * (4 * MEGABYTE // 3 - 2) + b"[]]",
    "4 MB of escapes": b'{"llm_model": "' + b"\\n" * (2 * MEGABYTE - 100) + b'"}',
    "4 MB of backslashes": rb'{"llm_model": "\\u0000' + b"\\" * (4 * MEGABYTE - 100) + b'"}',
    "4 MB of long numbers": b"[" + b",".join([b"1" * 4_000] * 1_000) + b"]",
    "19,000 wrong fields": b'{"agent_settings_diff": {"mcp_config": {'
    + b",".join(b'"%d": 7' % number for number in range(19_000))
    + b"}}}",
}
EVENTS: Mapping[str, dict[str, Any]] = {
    "16 MB of texts": {"text": "x" * MEGABYTE},
    "16 MB of lists": {"lists": [[]] * 24_000},
    "16 MB of too many lists": {"lists": [[]] * 240_000},
    "16 MB of floats": {"floats": [1.2345678901234567e-250] * 45_000},
    "16 MB of escapes": {"escapes": "\n" * 240_000},
    "16 MB of small events": {},
}
LARGE_EVENTS: Mapping[str, dict[str, Any]] = {
    "one event of 31 MB": {"text": "x" * (31 * MEGABYTE - 1_000)},
    "one event of 31 MB in short texts": {"texts": ["x" * 900] * 34_000},
    "31 MB of long numbers": {"numbers": [int("1" * 4_000)] * 7_700},
}
# Events of 1 MB each, the maximum that is stored, and the request of a start.
STORED_EVENTS = (
    {"text": "x" * 1_000_000},
    {"text": "\x01" * 160_000},
    {"floats": [1.2345678901234567e-250] * 40_000},
    {"lists": [json.loads("[" * 95 + "]" * 95)] * 250},
)
STORED_REQUEST = {"system_message_suffix": "x" * 1_000_000}


@dataclass(frozen=True)
class HeavyRequest:
    """An expensive request; without a body, it is a GET."""

    path: str
    headers: Mapping[str, str]
    body: bytes | None = None


def stalls(site: Site, runs: int) -> Iterator[Figure]:
    """Measure the slowest response to others during each of these requests."""
    for name, request in _heavy_requests(site):
        measured: Runs = []
        bare: Runs = []
        for _ in range(runs):
            found = [_measure(site.service.url, request) for _ in range(SAMPLES)]
            measured.append([beside for beside, _ in found])
            bare.append([alone for _, alone in found])
        yield Figure(
            f"slowest answer beside {name}", measured, "beside nothing", bare, "p50 ≤ 50 ms", _is_short, unit="ms"
        )


def _is_short(figure: Figure) -> bool:
    return figure.over_all(0.5) <= GOAL_SECONDS


def _heavy_requests(site: Site) -> Iterator[tuple[str, HeavyRequest]]:
    json_type = {"Content-Type": "application/json"}
    for name, body in BODIES.items():
        yield f"{name}, without a key", HeavyRequest(SETTINGS, json_type, body)
        yield name, HeavyRequest(SETTINGS, json_type | site.client.user.headers, body)
    conversation, key = make_sender(site, 0)
    path, headers = f"/api/v1/webhooks/events/{conversation.id}", json_type | {"X-Session-API-Key": key}
    for name, event in EVENTS.items():
        yield f"a webhook, {name}", HeavyRequest(path, headers, _events(event))
    for name, event in LARGE_EVENTS.items():
        yield f"a webhook, {name}", HeavyRequest(path, headers, b"[%b]" % _event(event))
    yield from _reading(site)


def _reading(site: Site) -> Iterator[tuple[str, HeavyRequest]]:
    """Reads of large stored data."""
    database, user = site.service.database, site.client.user
    conversation, _ = make_sender(site, 1)
    for number in range(12):
        make_event(database, conversation, id=f"e{number}", body=STORED_EVENTS[number % len(STORED_EVENTS)])
        make_start_task(database, user, stage=Stage.ERROR, request=STORED_REQUEST)
    tasks = "/api/v1/app-conversations/start-tasks/search"
    yield "a page of large start tasks", HeavyRequest(tasks, user.headers)
    yield (
        "a page of large events",
        HeavyRequest(f"/api/v1/conversation/{conversation.id}/events/search", user.headers),
    )
    archive = f"/api/v1/app-conversations/{conversation.id}/download"
    yield "an archive of large events", HeavyRequest(archive, user.headers)


def _events(event: Mapping[str, Any]) -> bytes:
    one = _event(event)
    return b"[" + b",".join([one] * (16 * MEGABYTE // (len(one) + 1) - 1)) + b"]"


def _event(event: Mapping[str, Any]) -> bytes:
    return json.dumps({"id": "e", "kind": "MessageEvent", "timestamp": "2026-01-01T00:00:00"} | dict(event)).encode()


def _measure(url: str, request: HeavyRequest) -> tuple[float, float]:
    """The slowest response during the request, and within the same time without it."""
    began = time.perf_counter()
    beside = _slowest_beside(url, lambda: _send(url, request))
    took = time.perf_counter() - began
    return beside, _slowest_beside(url, lambda: time.sleep(took))


def _slowest_beside(url: str, work: Callable[[], None]) -> float:
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        slowest = max(time_while(url, HEALTH, lambda: not working.done()))
        working.result()
    return slowest


def _send(url: str, request: HeavyRequest) -> None:
    path, headers = request.path, request.headers
    status = get(url, path, headers) if request.body is None else post(url, path, headers, request.body)
    assert status < 500, status
