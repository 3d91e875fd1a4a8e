"""Metrics of real processes: what a worker serves by itself, and what is left of them without their files."""

import shutil
from collections.abc import Callable, Iterator
from functools import partial

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
Tell = Callable[[], dict[tuple[str, ...], float]]


@pytest.fixture
def worker_port(installed: Deployment) -> Iterator[int]:
    """Where the worker serves metrics, beside a pool of one."""
    installed.prepare(TINY_IMAGE)
    with installed.database.transaction() as session:
        specs.change(session, TINY_IMAGE, {"warm_target": 1, "warm_most": 2})
    installed.start_api()
    with Port() as port:
        installed.start_worker(AW_METRICS_PORT=str(port))
        eventually(lambda: "following_events" in installed.log(), deadline_seconds=60)
        yield port


@pytest.fixture
def tell_worker(worker_port: int) -> Tell:
    return lambda: scrape(f"http://127.0.0.1:{worker_port}", "")


@pytest.fixture
def tell_api(installed: Deployment) -> Tell:
    key = installed.make_metrics_key()
    return lambda: scrape(installed.url, key)


def scrape(url: str, key: str) -> dict[tuple[str, ...], float]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    answer = http.get(f"{url}/metrics", headers=headers)
    assert answer.status_code == 200, answer.text
    return read_metrics(answer.text)


def test_worker_serves_what_it_has_counted(installed: Deployment, tell_worker: Tell) -> None:
    eventually(lambda: tell_worker().get(REFILLS) == 1)
    with installed.user("alice") as alice:
        alice.start_sandbox()
    eventually(lambda: tell_worker().get(REFILLS) == 2)
    assert tell_worker()[STARTS] == 1  # counted beside it, by the API


def test_who_removes_the_files_gets_metrics_all_the_same(
    installed: Deployment, tell_worker: Tell, tell_api: Tell
) -> None:
    eventually(lambda: tell_worker().get(REFILLS) == 1)
    with installed.user("alice") as alice:
        alice.start_sandbox()
        eventually(lambda: tell_api().get(REFILLS) == 2)
        shutil.rmtree(f"{installed.environment['AW_VAR_DIR']}/run/metrics")
        assert tell_api()["agent_workspace_warm_pool_target", TINY_IMAGE] == 1
        tell_worker()
        alice.start_sandbox()
    for tell in (tell_api, tell_worker):
        eventually(partial(is_counted_once, tell))


def is_counted_once(tell: Tell) -> bool:
    told = tell()
    return (told.get(STARTS), told.get(REFILLS)) == (1, 1)
