"""Pause and resume, from POST to completion, compared with the engine's own call."""

import time
from collections.abc import Callable

from tests.bench.figures import Figure, Runs
from tests.bench.site import Site
from tests.bench.starts import KEY, WEBHOOK, bare_container, delete, timed_start
from tests.factories import NODE_ID
from tests.waiting import eventually
from worker.sandboxes.container_spec import container_name, server_config

# The share of one processor below which a container is idle.
AT_REST = 0.05


def pauses(site: Site, image: str, name: str, runs: int, samples: int) -> list[Figure]:
    """Measure the pauses and resumes of a sandbox and of a bare container in alternation."""
    _, sandbox_id = timed_start(site, image)
    with bare_container(site, image) as bare:
        bare.boot(server_config(KEY, node_id=NODE_ID, webhook_url=WEBHOOK, origins=[]))
        for container in (container_name(sandbox_id), bare.request.name):
            _await_rest(site, container)
        verbs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "pause": (lambda: _request(site, sandbox_id, "pause"), lambda: site.api.pause(bare.request.name)),
            "resume": (lambda: _request(site, sandbox_id, "resume"), lambda: site.api.unpause(bare.request.name)),
        }
        measured: dict[str, Runs] = {verb: [] for verb in verbs}
        theirs: dict[str, Runs] = {verb: [] for verb in verbs}
        for _ in range(runs):
            for found in (measured, theirs):
                for verb in verbs:
                    found[verb].append([])
            for _ in range(samples):
                # In alternation, so that both begin under the same conditions: just after the other one was unpaused.
                for verb, (request, _) in verbs.items():
                    measured[verb][-1].append(_timed(request))
                for verb, (_, call) in verbs.items():
                    theirs[verb][-1].append(_timed(call))
    delete(site, sandbox_id)
    return [
        Figure(
            f"{verb}, {name}",
            measured[verb],
            f"bare docker {'unpause' if verb == 'resume' else verb}",
            theirs[verb],
            "≤ 3 × bare, p95 ≤ 150 ms",
            lambda one: one.ratio <= 3 and one.over_all(0.95) <= 0.15,
        )
        for verb in verbs
    ]


def _request(site: Site, sandbox_id: str, verb: str) -> None:
    response = site.client.post(f"/api/v1/sandboxes/{sandbox_id}/{verb}", params={"wait": 10})
    assert response.headers["Operation-Settled"] == "true", response.text


def _await_rest(site: Site, container: str) -> None:
    """Wait until the server is idle. It works for seconds after its boot, and longer if it is paused then."""
    eventually(lambda: _share(site, container) < AT_REST, deadline_seconds=60)


def _share(site: Site, container: str) -> float:
    """The share of one processor that a container uses within a second."""
    before = _used(site, container)
    time.sleep(1)
    return (_used(site, container) - before) / 1e9


def _used(site: Site, container: str) -> int:
    """The CPU time of a container so far, in nanoseconds."""
    stats = site.api.stats(container, stream=False, one_shot=True)
    return int(stats["cpu_stats"]["cpu_usage"]["total_usage"])


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began
