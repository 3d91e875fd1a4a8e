"""A signed-in browser of an operator."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.web.admin.access import FIELD
from shared.db.database import Database
from shared.users import roles
from tests.factories import ApiUser, make_user

ORIGIN = {"Origin": "http://testserver"}
Act = Callable[..., Any]


@pytest.fixture
def operator(database: Database) -> ApiUser:
    """A user with the role admin."""
    user = make_user(database, "olivia")
    with database.transaction() as session:
        assert roles.grant_admin(session, user.name)
    return user


@pytest.fixture
def browser(client: TestClient, operator: ApiUser) -> TestClient:
    """The operator's browser."""
    sign_in(client, operator)
    return client


@pytest.fixture
def act(browser: TestClient) -> Act:
    """A function that sends a form of a page, and returns the response."""

    def act(path: str, token: str | None = None, headers: dict[str, str] | None = None, **fields: object) -> Any:
        token = find_token(browser) if token is None else token
        data = {FIELD: token} | {name: str(value) for name, value in fields.items()}
        return browser.post(path, data=data, headers=ORIGIN if headers is None else headers)

    browser.follow_redirects = False
    return act


def sign_in(client: TestClient, user: ApiUser) -> None:
    response = client.post("/login", data={"api_key": user.key}, headers=ORIGIN, follow_redirects=False)
    assert response.status_code == 303


def find_token(client: TestClient) -> str:
    """The token in the forms of the page of nodes."""
    found = re.search(rf'name="{FIELD}" value="([0-9a-f]+)"', client.get("/admin/nodes").text)
    assert found is not None
    return found[1]
