"""Attacks on a node's door from inside a sandbox, which reaches only webhooks and its own secrets."""

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from shared.models import Sandbox
from tests.services import http
from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.engine import TINY_IMAGE
from tests.services.private_engine import PrivateEngine


@pytest.fixture
def service(installed: Deployment) -> Deployment:
    installed.prepare(TINY_IMAGE)
    installed.start()
    return installed


@pytest.fixture
def sandbox_ids(alice: Client) -> list[str]:
    """Two sandboxes of one user."""
    ids = [alice.start_sandbox() for _ in range(2)]
    for sandbox_id in ids:
        alice.await_sandbox(sandbox_id, "RUNNING")
    return ids


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_sandbox_reaches_nothing_else(
    service: Deployment, alice: Client, engine: PrivateEngine, sandbox_ids: list[str]
) -> None:
    mine, other = sandbox_ids
    key, other_key = ((alice.sandbox(one) or {})["session_api_key"] for one in sandbox_ids)

    def send(target: str, *headers: str, host: str = engine.gateway) -> int:
        """Send a request from inside with an unchanged target; return the status."""
        request = "".join(f"{line}\\r\\n" for line in (f"GET {target} HTTP/1.0", "Host: api", *headers, ""))
        script = f"printf '{request}' | busybox nc -w 10 {host} {service.door_port} | head -n 1"
        return int(engine.docker("exec", f"aw-{mine}", "sh", "-c", script).split()[1])

    secrets = f"/api/v1/sandboxes/{mine}/settings/secrets"
    assert send(secrets, f"X-Session-API-Key: {key}") == 200
    assert send(secrets) == 401
    assert send(f"/api/v1/sandboxes/{other}/settings/secrets", f"X-Session-API-Key: {key}") == 403
    assert send("/api/v1/webhooks/conversations", f"X-Session-API-Key: {key}") == 405  # the route accepts only POST

    bearer = f"Authorization: Bearer {alice.user.key}"
    refused = [
        "/",
        "/login",
        "/docs",
        "/openapi.json",
        "/api/keys",
        "/api/v1/users/me",
        "/api/v1/sandboxes/search",
        f"/api/v1/sandboxes/{mine}",
        "/oauth/device/authorize",
        "/metrics",
        f"/sandbox/{other}/server_info",
        "/api/v1/webhooks/../users/me",
        "/api/v1/webhooks/%2e%2e/users/me",
        "//api/v1/webhooks/conversations",
        f"{secrets}/../../../search",
        f"http://127.0.0.1:{service.port}/api/v1/users/me",
    ]
    for target in refused:
        assert send(target, bearer) in (400, 404), target
    assert alice.get("/api/v1/users/me").status_code == 200, "the control: the key is accepted elsewhere"

    # Sandboxes must not use the service's side: they do not reach its address, and without the token it leads nowhere.
    with http.open_client(f"http://{engine.address}:{service.door_port}") as client:
        place = next(iter(_places(service, other)))
        assert client.get(f"{place}/server_info", headers={"X-Session-API-Key": other_key}).status_code == 403


def _places(service: Deployment, sandbox_id: str) -> Iterator[str]:
    """The paths of a sandbox's ports at the door."""
    with service.database.reading() as session:
        for url in session.get_one(Sandbox, sandbox_id).exposed_urls or []:
            yield urlsplit(str(url["url"])).path
