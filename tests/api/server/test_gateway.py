"""The address that sandboxes reach: keys work there, and logins that were stolen from a browser don't."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.request.context import Context
from api.request.session_cookie import COOKIE
from tests.factories import Person

ME = "/api/keys/current"
GATEWAY, OURS = "http://172.17.0.1:3000", "http://127.0.0.1:3000"


@pytest.fixture
def client(context: Context) -> Iterator[TestClient]:
    """A client of an application that listens at two addresses."""
    settings = context.settings.model_copy(update={"host": "127.0.0.1", "gateway_host": "172.17.0.1"})
    with TestClient(create_app(replace(context, settings=settings)), base_url=OURS) as client:
        yield client


def sign_in(client: TestClient, user: Person, url: str) -> int:
    form, headers = {"api_key": user.key}, {"Origin": url}
    return int(client.post(f"{url}/login", data=form, headers=headers, follow_redirects=False).status_code)


def test_a_login_opens_nothing_there(client: TestClient, user: Person) -> None:
    assert sign_in(client, user, OURS) == 303
    cookie = {"Cookie": f"{COOKIE}={client.cookies[COOKIE]}", "Origin": GATEWAY}
    assert client.get(ME).status_code == 200
    assert client.get(f"{GATEWAY}{ME}", headers=cookie).status_code == 401
    assert client.post(f"{GATEWAY}/api/keys", json={"name": "mine"}, headers=cookie).status_code == 401
    assert client.get(f"{GATEWAY}{ME}", headers=cookie | user.headers).status_code == 200


def test_nobody_is_signed_in_there(client: TestClient, user: Person) -> None:
    assert sign_in(client, user, GATEWAY) == 403
    assert COOKIE not in client.cookies


def test_it_is_not_told_apart_where_it_is_the_only_one(context: Context, user: Person) -> None:
    settings = context.settings.model_copy(update={"host": "172.17.0.1", "gateway_host": "172.17.0.1"})
    with TestClient(create_app(replace(context, settings=settings)), base_url=GATEWAY) as client:
        assert sign_in(client, user, GATEWAY) == 303
        assert client.get(ME).status_code == 200
