"""The metrics for Prometheus, and the key they need."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client import Metric

from shared.clock import after, now
from shared.crypto import new_api_key
from shared.db.database import Database
from shared.ids import new_id
from shared.models import Sandbox, SandboxSpec
from shared.settings import Settings
from shared.states import Desired, Status
from tests.factories import VAULT, ApiUser, make_node, make_sandbox, make_spec, session_key_of
from tests.services.metrics import read_metrics

STARTS = "agent_workspace_sandbox_starts_total"
SANDBOXES = "/api/v1/sandboxes"


@pytest.fixture
def key(settings: Settings) -> str:
    key = new_api_key()
    settings.metrics_key_file.write_text(f"{key}\n")
    return key


@pytest.fixture
def pooled(database: Database) -> SandboxSpec:
    """A spec for this test only, so that earlier counts of other specs do not matter."""
    make_node(database)
    return make_spec(database, f"pooled/{new_id()}:1", warm_target=2, warm_most=3)


def add_member(database: Database, spec: SandboxSpec, status: Status = Status.RUNNING) -> Sandbox:
    no_owner = ApiUser("", "", "")
    mine: dict[str, Any] = {"owner_id": None, "boot_key": VAULT.encrypt("boot"), "spec_revision": spec.revision}
    return make_sandbox(database, no_owner, spec_id=spec.id, status=status, **mine)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def scrape(client: TestClient, key: str) -> dict[tuple[str, ...], float]:
    response = client.get("/metrics", headers=bearer(key))
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return read_metrics(response.text)


def test_metrics_require_their_own_key(client: TestClient, key: str, user: ApiUser, database: Database) -> None:
    sandbox_key = session_key_of(make_sandbox(database, user))
    for headers in (
        {},
        bearer(""),
        bearer("aw_wrong"),
        bearer(f"{key}x"),
        bearer("clé"),
        bearer(sandbox_key),
        user.headers,
        {"Authorization": f"Basic {key}"},
        {"X-Session-API-Key": key},
    ):
        response = client.get("/metrics", headers={name: value.encode() for name, value in headers.items()})
        assert response.status_code == 401, headers
        assert response.headers["www-authenticate"] == "Bearer"
        assert key not in response.text
    assert scrape(client, key)
    assert client.get(f"{SANDBOXES}/search", headers=bearer(key)).status_code == 401


def test_metrics_without_a_key_file_are_closed(client: TestClient, settings: Settings) -> None:
    assert client.get("/metrics", headers=bearer("")).status_code == 401
    settings.metrics_key_file.write_text("\n")
    assert client.get("/metrics", headers=bearer("")).status_code == 401


def test_metrics_key_that_the_api_may_not_read_is_named(
    client: TestClient, key: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(settings.metrics_key_file))

    monkeypatch.setattr(Path, "read_text", refuse)  # a stub, because root may read every file
    response = client.get("/metrics", headers=bearer(key))
    assert (response.status_code, "may not read metrics.key" in response.json()["detail"]) == (503, True)


def test_new_metrics_key_is_valid_immediately(client: TestClient, key: str, settings: Settings) -> None:
    assert scrape(client, key)
    settings.metrics_key_file.write_text("another")
    assert scrape(client, "another")
    assert client.get("/metrics", headers=bearer(key)).status_code == 401


def test_time_of_requests_that_wait_for_completion_is_not_measured(
    client: TestClient, key: str, user: ApiUser, database: Database
) -> None:
    """An alert says that requests are slow."""
    route = "POST", f"{SANDBOXES}/{{sandbox_id}}/pause"
    measured, responded = "agent_workspace_http_request_seconds_count", "agent_workspace_http_responses_total"
    before = scrape(client, key)
    for wait in ({"wait": 0.01}, {}):
        path = f"{SANDBOXES}/{make_sandbox(database, user).id}/pause"
        assert client.post(path, params=wait, headers=user.headers).status_code == 200
    after_both = scrape(client, key)
    counts = [after_both[name] - before.get(name, 0) for name in ((measured, *route), (responded, *route, "2xx"))]
    assert counts == [1, 2]


def test_starts_from_the_pool_and_others_are_counted(
    client: TestClient, key: str, user: ApiUser, database: Database, pooled: SandboxSpec
) -> None:
    add_member(database, pooled)
    start = partial(client.post, SANDBOXES, params={"sandbox_spec_id": pooled.id}, headers=user.headers)
    assert start().status_code == 200
    metrics = scrape(client, key)
    assert (metrics[STARTS, "pool", pooled.id], metrics[STARTS, "boot", pooled.id]) == (1, 0)
    assert start().status_code == start().status_code == 200
    metrics = scrape(client, key)
    assert (metrics[STARTS, "pool", pooled.id], metrics[STARTS, "boot", pooled.id]) == (1, 2)


def test_starts_of_a_spec_without_a_pool_are_neither(
    client: TestClient, key: str, user: ApiUser, database: Database
) -> None:
    make_node(database)
    spec = make_spec(database, f"cold/{new_id()}:1")
    assert client.post(SANDBOXES, params={"sandbox_spec_id": spec.id}, headers=user.headers).status_code == 200
    assert not [name for name in scrape(client, key) if spec.id in name]


def test_repeated_start_is_counted_once(client: TestClient, key: str, user: ApiUser, pooled: SandboxSpec) -> None:
    headers = user.headers | {"Idempotency-Key": "once"}
    for _ in range(2):
        assert client.post(SANDBOXES, params={"sandbox_spec_id": pooled.id}, headers=headers).status_code == 200
    assert scrape(client, key)[STARTS, "boot", pooled.id] == 1


def test_refused_start_is_not_counted(
    client: TestClient, key: str, user: ApiUser, pooled: SandboxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError

    monkeypatch.setattr("api.request.command_options.IdempotentRequest.keep", fail)  # the last step before the commit
    params = {"sandbox_spec_id": pooled.id}
    assert client.post(SANDBOXES, params=params, headers=user.headers).status_code == 500
    assert (STARTS, "boot", pooled.id) not in scrape(client, key)


def test_pool_gauges_show_the_current_pools(
    client: TestClient, key: str, database: Database, pooled: SandboxSpec
) -> None:
    for status in (Status.RUNNING, Status.RUNNING, Status.STARTING, Status.ERROR, Status.DELETED):
        add_member(database, pooled, status)
    metrics = scrape(client, key)
    pool = "agent_workspace_warm_pool"
    assert metrics[f"{pool}_members", pooled.id, "ready"] == 2
    assert metrics[f"{pool}_members", pooled.id, "booting"] == 1
    assert metrics[f"{pool}_target", pooled.id] == 2
    assert metrics[f"{pool}_most", pooled.id] == 3


def test_empty_pool_has_gauges(client: TestClient, key: str, pooled: SandboxSpec) -> None:
    assert scrape(client, key)["agent_workspace_warm_pool_members", pooled.id, "ready"] == 0


def test_metrics_count_the_rows_that_wait_for_a_worker(
    client: TestClient, key: str, user: ApiUser, database: Database
) -> None:
    def waiting() -> list[float]:
        metrics = scrape(client, key)
        names = ("sandboxes_waiting", "sandboxes_due", "oldest_due_seconds")
        return [metrics[f"agent_workspace_{name}",] for name in names]

    make_sandbox(database, user)
    assert waiting() == [0, 0, 0]
    make_sandbox(database, user, status=Status.STARTING, due_at=after(5))
    assert waiting() == [1, 0, 0]
    make_sandbox(database, user, desired=Desired.PAUSED, due_at=now() - timedelta(seconds=60))
    waits, due, oldest = waiting()
    assert (waits, due) == (2, 1)
    assert 60 <= oldest < 90
    # Written by a wrong clock: the row is due, but its delay is unknown.
    make_sandbox(database, user, due_at=after(3600))
    assert waiting()[:2] == [3, 2]


def test_slow_scrape_delays_no_other_request(client: TestClient, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = Event(), Event()

    def collect(_scrape: object) -> list[Metric]:
        begun.set()
        ended.wait(20)
        return []

    monkeypatch.setattr("api.routes.ops.metrics._Scrape.collect", collect)
    with ThreadPoolExecutor() as pool:
        scraped = pool.submit(scrape, client, key)
        assert begun.wait(20)
        assert client.get("/health").status_code == 200
        assert not scraped.done()
        ended.set()
        assert scraped.result() == {}


def test_metrics_contain_no_user_data(client: TestClient, key: str, user: ApiUser, pooled: SandboxSpec) -> None:
    params = {"sandbox_spec_id": pooled.id}
    made = client.post(SANDBOXES, params=params, headers=user.headers).json()["id"]
    text = client.get("/metrics", headers=bearer(key)).text
    assert [secret for secret in (made, user.id, user.name, user.key, key) if secret in text] == []
