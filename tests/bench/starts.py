"""Starts from the warm pool, compared with a bare `/api/init`, and cold starts, compared with a bare container."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from shared.ids import new_id
from shared.models import Sandbox, SandboxSpec
from tests.bench.figures import Figure, Runs
from tests.bench.site import Site
from tests.factories import NODE_ID
from tests.waiting import eventually
from worker.engine.protocol import ContainerRequest
from worker.sandboxes.container_spec import (
    CONFIG_PATH,
    container_request,
    deferred_init_config,
    init_config,
    server_config,
)

KEY, BOOT_KEY = "the-bare-servers-key", "the-bare-servers-boot-key"
WEBHOOK = "http://127.0.0.1:9/closed"
LONG = 60


@dataclass(frozen=True)
class Bare:
    """A container like the worker's, created with the engine alone."""

    site: Site
    request: ContainerRequest

    def boot(self, config: bytes) -> str:
        """Create and start the container; return the agent server's URL."""
        engine = self.site.engine
        engine.create(self.request)
        engine.put_file(self.request.name, CONFIG_PATH, config)
        engine.start(self.request.name)
        return f"http://{engine.observe(self.request.name).address}:8000"

    def remove(self) -> None:
        """Remove the container and its files."""
        self.site.engine.remove(self.request.name)


@contextmanager
def bare_container(site: Site, image: str) -> Iterator[Bare]:
    """A bare container, which is removed after the block."""
    sandbox = Sandbox(id=new_id(), owner_id=new_id(), spec_id=image)  # type: ignore[call-arg]
    spec = SandboxSpec(id=image, position=0)
    bare = Bare(site, container_request(sandbox, spec, installation=site.bare_installation))
    try:
        yield bare
    finally:
        bare.remove()


def warm(site: Site, image: str, name: str, runs: int, samples: int) -> Figure:
    """A start that claims a warm sandbox, from POST to RUNNING, compared with the init request to a bare server."""
    site.set_pool(image, 2)
    measured: Runs = []
    bare: Runs = []
    for _ in range(runs):
        pairs = [_claim(site, image) for _ in range(samples)]
        measured.append([pair[0] for pair in pairs])
        bare.append([pair[1] for pair in pairs])
    site.set_pool(image, 0)
    site.await_pool(image, 0)
    return Figure(
        f"warm start, {name}",
        measured,
        "bare /api/init",
        bare,
        "p50 ≤ 60, p95 ≤ 150, p99 ≤ 300 ms; ≤ 3 × bare",
        lambda one: (
            one.over_all(0.5) <= 0.06 and one.over_all(0.95) <= 0.15 and one.over_all(0.99) <= 0.3 and one.ratio <= 3
        ),
    )


def cold(site: Site, image: str, name: str, runs: int) -> Figure:
    """A cold start, from POST to RUNNING, compared with a bare container until it is healthy."""
    measured: Runs = []
    bare: Runs = []
    for _ in range(runs):
        seconds, sandbox_id = timed_start(site, image)
        measured.append([seconds])
        delete(site, sandbox_id)
        bare.append([_boot_bare(site, image)])
    return Figure(
        f"cold start, {name}",
        measured,
        "bare container to healthy",
        bare,
        "≤ 1.10 × bare",
        lambda one: one.ratio <= 1.1,
    )


def timed_start(site: Site, image: str) -> tuple[float, str]:
    """Start a sandbox; return the seconds from POST to RUNNING, and its id."""
    began = time.perf_counter()
    response = site.client.post("/api/v1/sandboxes", params={"wait": LONG, "sandbox_spec_id": image})
    seconds = time.perf_counter() - began
    shown = response.json()
    assert (response.headers["Operation-Settled"], shown["status"]) == ("true", "RUNNING"), response.text
    return seconds, str(shown["id"])


def delete(site: Site, sandbox_id: str) -> None:
    """Delete a sandbox, and wait until it is deleted."""
    response = site.client.delete(f"/api/v1/sandboxes/{sandbox_id}", params={"wait": LONG})
    assert response.headers["Operation-Settled"] == "true", response.text


def await_healthy(http: httpx.Client, url: str, key: str) -> None:
    """Poll, with the worker's intervals, until the server accepts the key."""
    pause = 0.02
    while not _is_healthy(http, url, key):
        time.sleep(pause)
        pause = min(pause * 1.5, 0.25)


def await_dormant(http: httpx.Client, url: str) -> None:
    """Wait until a bare server awaits its deferred init."""
    eventually(lambda: _is_dormant(http, url), deadline_seconds=LONG)


def init(http: httpx.Client, url: str) -> float:
    """Initialize a bare server; return the seconds until it accepts its key."""
    config = init_config(KEY, node_id=NODE_ID, webhook_url=WEBHOOK)
    began = time.perf_counter()
    response = http.post(f"{url}/api/init", json=config, headers={"X-Init-API-Key": BOOT_KEY})
    response.raise_for_status()
    assert _is_healthy(http, url, KEY)
    return time.perf_counter() - began


def _claim(site: Site, image: str) -> tuple[float, float]:
    with bare_container(site, image) as bare, httpx.Client(trust_env=False) as http:
        url = bare.boot(deferred_init_config(BOOT_KEY, origins=[]))
        await_dormant(http, url)
        site.await_pool(image, 2)
        seconds, sandbox_id = timed_start(site, image)
        site.await_pool(image, 2)
        alone = init(http, url)
    delete(site, sandbox_id)
    return seconds, alone


def _boot_bare(site: Site, image: str) -> float:
    with bare_container(site, image) as bare, httpx.Client(trust_env=False) as http:
        began = time.perf_counter()
        await_healthy(http, bare.boot(server_config(KEY, node_id=NODE_ID, webhook_url=WEBHOOK, origins=[])), KEY)
        return time.perf_counter() - began


def _is_healthy(http: httpx.Client, url: str, key: str) -> bool:
    try:
        found = http.get(f"{url}/api/conversations/count", headers={"X-Session-API-Key": key}, timeout=3)
    except httpx.TransportError:
        return False
    return bool(found.status_code == httpx.codes.OK)


def _is_dormant(http: httpx.Client, url: str) -> bool:
    try:
        return bool(http.get(f"{url}/api/init", timeout=3).json()["state"] == "dormant")
    except (httpx.TransportError, ValueError):
        return False
