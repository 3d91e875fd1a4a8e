"""Rate limits of requests, as clients see them: which one applies, and what a rejected request gets."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.request.context import Context
from shared.db.database import Database
from shared.ids import new_id
from tests.factories import ApiUser, make_sandbox, session_key_of
from tests.services.asgi import serving

START = "/oauth/device/authorize"
Make = Callable[..., TestClient]


@pytest.fixture
def make(context: Context) -> Iterator[Make]:
    """A function that makes a client of an application with given settings."""
    with ExitStack() as stack:

        def make(**settings: Any) -> TestClient:
            own = replace(context, settings=context.settings.model_copy(update=settings))
            return stack.enter_context(TestClient(create_app(own), follow_redirects=False))

        yield make


@pytest.mark.parametrize(
    ("setting", "method", "path", "name"),
    [
        ("rate_logins", "POST", "/login", "login"),
        ("rate_logins", "POST", "/oauth/device/verify", "login"),
        ("rate_device_starts", "POST", "/oauth/device/authorize", "device-start"),
        ("rate_device_polls", "POST", "/oauth/device/token", "device-poll"),
        ("rate_logins", "POST", "/login%0A", "login"),
        ("rate_device_starts", "POST", "/oauth/device/authorize%0A", "device-start"),
        ("rate_keyless", "GET", "/login", "keyless"),
        ("rate_keyless", "GET", "/api/v1/web-client/config", "keyless"),
        ("rate_keyless", "GET", "/api/v1/web-client/config%0A", "keyless"),
        ("rate_keyless", "GET", "/nowhere", "keyless"),
    ],
)
def test_request_over_the_limit_is_a_429_with_standard_headers(
    make: Make, user: ApiUser, setting: str, method: str, path: str, name: str
) -> None:
    client = make(**{setting: 2})
    responses = [client.request(method, path) for _ in range(3)]
    assert [response.status_code == 429 for response in responses] == [False, False, True]
    assert [response.headers["RateLimit"].partition(";t=")[0] for response in responses] == [
        f'"{name}";r={remaining}' for remaining in (1, 0, 0)
    ]
    assert {response.headers["RateLimit-Policy"] for response in responses} == {f'"{name}";q=2;w=60'}
    refused = responses[-1]
    assert 0 < int(refused.headers["Retry-After"]) <= 30
    assert refused.json()["detail"].startswith(f"more than 2 {name} requests of this address in a minute")
    # Requests with a key, and checks of health, are not counted.
    assert client.get("/api/v1/users/me", headers=user.headers).status_code == 200
    assert client.get("/alive").status_code == 200


def test_wrong_keys_are_429s_in_the_end_and_the_right_one_still_passes(
    make: Make, user: ApiUser, database: Database
) -> None:
    client, sandbox = make(rate_wrong_keys=3), make_sandbox(database, user)
    wrong = {"Authorization": "Bearer wrong"}
    paths = ("/api/v1/users/me", f"/sandbox/{sandbox.id}/x", "/api/nowhere", "/api/v1/sandboxes/search")
    assert [client.get(path, headers=wrong).status_code for path in paths] == [401, 401, 404, 401]
    refused = [client.get(path, headers=wrong) for path in (paths[0], paths[1], paths[3])]
    assert [response.status_code for response in refused] == [429, 429, 429]
    assert all("Retry-After" in response.headers for response in refused)
    webhook = client.post(f"/api/v1/webhooks/events/{new_id()}", json=[], headers={"X-Session-API-Key": "wrong"})
    assert webhook.status_code == 429
    assert client.get(paths[0], headers=user.headers).status_code == 200


def test_webhooks_are_limited_for_each_sandbox(make: Make, user: ApiUser, database: Database) -> None:
    client = make(rate_webhooks=2)
    one, other = (make_sandbox(database, user) for _ in range(2))

    def send(key: str) -> httpx.Response:
        path = f"/api/v1/webhooks/events/{new_id()}"
        response: httpx.Response = client.post(path, json=[], headers={"X-Session-API-Key": key})
        return response

    responses = [send(session_key_of(one)) for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    assert int(responses[-1].headers["Retry-After"]) > 0
    assert send(session_key_of(other)).status_code == 200


def test_only_a_trusted_proxy_names_the_address(context: Context) -> None:
    own = replace(context, settings=context.settings.model_copy(update={"rate_device_starts": 1}))
    for trusted, expected in (("192.0.2.0/24", [200, 429]), ("127.0.0.1", [200, 200])):
        app = create_app(replace(own))
        with serving(app, proxy_headers=True, forwarded_allow_ips=trusted) as url:
            statuses = [
                httpx.post(f"{url}{START}", headers={"X-Forwarded-For": address}, trust_env=False).status_code
                for address in ("198.51.100.1", "198.51.100.2")
            ]
        assert statuses == expected
