"""A hundred starts at once, from a sufficient warm pool and cold, compared with a loop of bare containers."""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx

from tests.bench.figures import Figure, Runs
from tests.bench.site import Site
from tests.bench.starts import (
    BOOT_KEY,
    KEY,
    WEBHOOK,
    Bare,
    await_dormant,
    await_healthy,
    bare_container,
    init,
)
from tests.factories import NODE_ID
from worker.sandboxes.container_spec import deferred_init_config, server_config

MANY = 100
LONG = 60
# The numbers of threads of the bare loop. The fastest is the best that the engine can do.
THREADS = (1, 2, 4, 8)


def warm_burst(site: Site, image: str, name: str, runs: int) -> list[Figure]:
    """The time of each start, and the time until the last sandbox is RUNNING."""
    site.set_pool(image, MANY)
    each: Runs = []
    last: Runs = []
    bare: Runs = []
    for _ in range(runs):
        site.await_pool(image, MANY, deadline_seconds=600)
        found, seconds = _burst(site, image)
        each.append(found)
        last.append([seconds])
        site.await_pool(image, MANY, deadline_seconds=600)
        bare.append([_bare_inits(site, image)])
    site.set_pool(image, 0)
    site.await_pool(image, 0, deadline_seconds=600)
    return [
        Figure(
            f"{MANY} warm starts at once, {name}: each",
            each,
            goal="p50 ≤ 400 ms",
            check=lambda one: one.over_all(0.5) <= 0.4,
        ),
        Figure(
            f"{MANY} warm starts at once, {name}: all",
            last,
            f"{MANY} bare /api/init at once",
            bare,
            "≤ 2 s",
            lambda one: one.over_all(0.5) <= 2,
        ),
    ]


def cold_burst(site: Site, image: str, name: str, runs: int) -> Figure:
    """The time until the last sandbox is RUNNING, compared with a bare loop with the best number of threads."""
    measured: Runs = []
    bare: Runs = []
    for _ in range(runs):
        measured.append([_burst(site, image)[1]])
        bare.append([min(_bare_loop(site, image, threads) for threads in THREADS)])
    return Figure(
        f"{MANY} cold starts at once, {name}: all",
        measured,
        "bare loop at its best",
        bare,
        "≤ 1.25 × bare",
        lambda one: one.ratio <= 1.25,
    )


def _burst(site: Site, image: str) -> tuple[list[float], float]:
    """Start and delete `MANY` sandboxes."""
    began = time.perf_counter()
    found = asyncio.run(_start_all(site, image))
    seconds = time.perf_counter() - began
    asyncio.run(_delete_all(site, [sandbox_id for _, sandbox_id in found]))
    return [took for took, _ in found], seconds


async def _start_all(site: Site, image: str) -> list[tuple[float, str]]:
    async with _client(site) as client:
        return await asyncio.gather(*(_start(client, image) for _ in range(MANY)))


async def _start(client: httpx.AsyncClient, image: str) -> tuple[float, str]:
    began = time.perf_counter()
    response = await client.post("/api/v1/sandboxes", params={"wait": LONG, "sandbox_spec_id": image})
    seconds = time.perf_counter() - began
    shown = response.json()
    while shown["status"] == "STARTING":  # the start takes longer than the longest wait of a request
        response = await client.get(f"/api/v1/sandboxes/{shown['id']}")
        shown, seconds = response.json(), time.perf_counter() - began
        await asyncio.sleep(0.2)
    assert shown["status"] == "RUNNING", response.text
    return seconds, shown["id"]


async def _delete_all(site: Site, ids: Sequence[str]) -> None:
    async with _client(site) as client:
        gone = (client.delete(f"/api/v1/sandboxes/{sandbox_id}", params={"wait": LONG}) for sandbox_id in ids)
        await asyncio.gather(*gone)


def _client(site: Site) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=MANY, max_keepalive_connections=MANY)
    headers = site.client.user.headers
    return httpx.AsyncClient(base_url=site.service.url, headers=headers, limits=limits, timeout=2 * LONG)


def _bare_loop(site: Site, image: str, threads: int) -> float:
    with ExitStack() as stack, ThreadPoolExecutor(threads) as pool:
        made = [stack.enter_context(bare_container(site, image)) for _ in range(MANY)]
        began = time.perf_counter()
        list(pool.map(_boot, made))
        seconds = time.perf_counter() - began
        list(pool.map(Bare.remove, made))
    return seconds


def _bare_inits(site: Site, image: str) -> float:
    """The seconds until `MANY` bare servers, initialized at once, have responded."""
    with ExitStack() as stack, ThreadPoolExecutor(MANY) as pool:
        made = [stack.enter_context(bare_container(site, image)) for _ in range(MANY)]
        urls = [bare.boot(deferred_init_config(BOOT_KEY, origins=[])) for bare in made]
        clients = [stack.enter_context(httpx.Client(trust_env=False, timeout=LONG)) for _ in made]
        for http, url in zip(clients, urls, strict=True):
            await_dormant(http, url)
        began = time.perf_counter()
        list(pool.map(init, clients, urls))
        return time.perf_counter() - began


def _boot(bare: Bare) -> None:
    with httpx.Client(trust_env=False) as http:
        await_healthy(http, bare.boot(server_config(KEY, node_id=NODE_ID, webhook_url=WEBHOOK, origins=[])), KEY)
