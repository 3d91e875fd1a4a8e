"""The address that sandboxes reach: API keys work there, session cookies do not."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.request.context import Context
from api.request.session_cookie import COOKIE
from tests.factories import Person

KEY_PATH = "/api/keys/current"
GATEWAY, PUBLIC = "http://172.17.0.1:3000", "http://127.0.0.1:3000"


@pytest.fixture
def client(context: Context) -> Iterator[TestClient]:
    """A client of an application that listens at two addresses."""
    settings = context.settings.model_copy(update={"host": "127.0.0.1", "gateway_host": "172.17.0.1"})
    with TestClient(create_app(replace(context, settings=settings)), base_url=PUBLIC) as client:
        yield client


def sign_in(client: TestClient, user: Person, url: str) -> int:
    form, headers = {"api_key": user.key}, {"Origin": url}
    return int(client.post(f"{url}/login", data=form, headers=headers, follow_redirects=False).status_code)


def test_session_cookie_is_ignored_at_the_gateway_address(client: TestClient, user: Person) -> None:
    assert sign_in(client, user, PUBLIC) == 303
    cookie = {"Cookie": f"{COOKIE}={client.cookies[COOKIE]}", "Origin": GATEWAY}
    assert client.get(KEY_PATH).status_code == 200
    assert client.get(f"{GATEWAY}{KEY_PATH}", headers=cookie).status_code == 401
    assert client.post(f"{GATEWAY}/api/keys", json={"name": "stolen"}, headers=cookie).status_code == 401
    assert client.get(f"{GATEWAY}{KEY_PATH}", headers=cookie | user.headers).status_code == 200


def test_login_is_rejected_at_the_gateway_address(client: TestClient, user: Person) -> None:
    assert sign_in(client, user, GATEWAY) == 403
    assert COOKIE not in client.cookies


def test_login_works_at_the_gateway_address_if_it_is_the_only_one(context: Context, user: Person) -> None:
    settings = context.settings.model_copy(update={"host": "172.17.0.1", "gateway_host": "172.17.0.1"})
    with TestClient(create_app(replace(context, settings=settings)), base_url=GATEWAY) as client:
        assert sign_in(client, user, GATEWAY) == 303
        assert client.get(KEY_PATH).status_code == 200
