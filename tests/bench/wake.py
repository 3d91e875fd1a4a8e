"""The cost of the sandbox path and of a resume by traffic, compared with the same without the service in each run.

One client uses one connection. The bare server is a container of the same image that only the engine knows. It gets
direct requests, and requests sent as soon as a bare unpause has returned. The API freezes the sandbox before each
request that resumes it. "Added" is the time of such a request beyond the median of the requests to a running sandbox
in that run.
"""

import statistics
import time
from collections.abc import Callable

import httpx

from tests.bench.figures import Figure, Runs
from tests.bench.site import Site
from tests.bench.starts import KEY, WEBHOOK, await_healthy, bare_container, delete, timed_start
from tests.factories import NODE_ID
from worker.sandboxes.container_spec import server_config

ASKED = "/api/conversations/count"
GOAL_SECONDS = 0.15
# The engine may record a pause late, when it is already over, and would then refuse the next pause.
REST_SECONDS = 0.1


def wakes(site: Site, image: str, name: str, runs: int, samples: int) -> list[Figure]:
    """Measure requests to a running sandbox and to a frozen one, and what the resume adds."""
    found: dict[str, Runs] = {kind: [] for kind in ("direct", "through", "unpaused", "woken")}
    _, sandbox_id = timed_start(site, image)
    key = site.client.read("/api/v1/sandboxes", id=sandbox_id)[0]["session_api_key"]
    with bare_container(site, image) as bare, httpx.Client(trust_env=False, timeout=60) as http:
        url = bare.boot(server_config(KEY, node_id=NODE_ID, webhook_url=WEBHOOK, origins=[]))
        await_healthy(http, url, KEY)
        engine = site.api

        def direct() -> None:
            _send(http, url, KEY)

        def through() -> None:
            _send(http, f"{site.service.url}/sandbox/{sandbox_id}", key)

        def unpaused() -> None:
            engine.unpause(bare.request.name)
            direct()

        acts: dict[str, tuple[Callable[[], object], Callable[[], None]]] = {
            "direct": (lambda: None, direct),
            "through": (lambda: None, through),
            "unpaused": (lambda: engine.pause(bare.request.name), unpaused),
            "woken": (lambda: _freeze(site, sandbox_id), through),
        }
        for act in (direct, through):
            act()
        for _ in range(runs):
            for kind, (prepare, act) in acts.items():
                found[kind].append([_timed(prepare, act) for _ in range(samples)])
    delete(site, sandbox_id)
    added = [
        [seconds - statistics.median(running) for seconds in woken]
        for woken, running in zip(found["woken"], found["through"], strict=True)
    ]
    return [
        Figure(f"request to a running sandbox, {name}", found["through"], "direct request", found["direct"]),
        Figure(
            f"request to a frozen sandbox, {name}", found["woken"], "bare unpause, direct request", found["unpaused"]
        ),
        Figure(
            f"added by the wake, {name}",
            added,
            goal="p95 ≤ 150 ms",
            check=lambda one: one.over_all(0.95) <= GOAL_SECONDS,
        ),
    ]


def _send(http: httpx.Client, url: str, key: str) -> None:
    response = http.get(url + ASKED, headers={"X-Session-API-Key": key})
    assert response.status_code == httpx.codes.OK, response.text


def _freeze(site: Site, sandbox_id: str) -> None:
    response = site.client.post(f"/api/v1/sandboxes/{sandbox_id}/pause", params={"wait": 10})
    assert response.headers["Operation-Settled"] == "true", response.text


def _timed(prepare: Callable[[], object], act: Callable[[], None]) -> float:
    prepare()
    time.sleep(REST_SECONDS)
    began = time.perf_counter()
    act()
    return time.perf_counter() - began
