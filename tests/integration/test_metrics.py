"""Metrics of real processes: a worker serves its own, and all are served again after their files are removed."""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from shared.sandboxes import specs
from tests.services import http
from tests.services.deployment import Deployment
from tests.services.engine import TINY_IMAGE
from tests.services.metrics import read_metrics
from tests.services.ports import Port
from tests.waiting import eventually

STARTS = ("agent_workspace_sandbox_starts_total", "pool", TINY_IMAGE)
REFILLS = ("agent_workspace_warm_pool_refill_seconds_count", TINY_IMAGE)
Scrape = Callable[[], dict[tuple[str, ...], float]]


@pytest.fixture
def worker_port(installed: Deployment) -> Iterator[int]:
    """The port of the worker's metrics, with a warm pool of one sandbox."""
    installed.prepare(TINY_IMAGE)
    with installed.database.transaction() as session:
        specs.change(session, TINY_IMAGE, {"warm_target": 1, "warm_most": 2})
    installed.start_api()
    with Port() as port:
        installed.start_worker(AW_METRICS_PORT=str(port))
        eventually(lambda: "following_events" in installed.log(), deadline_seconds=180)
        yield port


@pytest.fixture
def scrape_worker(worker_port: int) -> Scrape:
    return lambda: scrape(f"http://127.0.0.1:{worker_port}", "")


@pytest.fixture
def scrape_api(installed: Deployment) -> Scrape:
    key = installed.make_metrics_key()
    return lambda: scrape(installed.url, key)


def scrape(url: str, key: str) -> dict[tuple[str, ...], float]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    response = http.get(f"{url}/metrics", headers=headers)
    assert response.status_code == 200, response.text
    return read_metrics(response.text)


def test_worker_serves_its_own_counts(installed: Deployment, scrape_worker: Scrape) -> None:
    eventually(lambda: scrape_worker().get(REFILLS) == 1)
    with installed.user("alice") as alice:
        alice.start_sandbox()
    eventually(lambda: scrape_worker().get(REFILLS) == 2)
    assert scrape_worker()[STARTS] == 1  # counted by the API


# Two files each of the API and of the worker.
FILES = 4


def test_metrics_are_served_after_the_removal_of_their_files(
    installed: Deployment, scrape_worker: Scrape, scrape_api: Scrape
) -> None:
    eventually(lambda: scrape_worker().get(REFILLS) == 1)
    with installed.user("alice") as alice:
        alice.start_sandbox()
        eventually(lambda: scrape_api().get(REFILLS) == 2)
        folder = Path(installed.environment["AW_VAR_DIR"], "run", "metrics")
        shutil.rmtree(folder)
        assert scrape_api()["agent_workspace_warm_pool_target", TINY_IMAGE] == 1
        # A process checks once a second whether its files exist: what it counts before that check is lost.
        eventually(lambda: scrape_api() and scrape_worker() and len(list(folder.glob("*.db"))) == FILES)
        alice.start_sandbox()
    for read in (scrape_api, scrape_worker):
        eventually(partial(has_single_counts, read))


def has_single_counts(read: Scrape) -> bool:
    values = read()
    return (values.get(STARTS), values.get(REFILLS)) == (1, 1)
