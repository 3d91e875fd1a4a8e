"""After a new secret key is put before the old one, existing keys and logins still work, and can be ended."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.request.context import Context
from api.request.session_cookie import COOKIE
from shared.crypto import Vault, new_secret_key
from shared.db.database import Database
from tests.api.routes.account.test_login import ME, OURS, sign_in
from tests.factories import SECRET_KEY, ApiUser, make_sandbox, session_key_of


@pytest.fixture
def rotated(api_context: Context) -> Iterator[TestClient]:
    """A client of a process that writes with a new secret key, and also has the old one."""
    vault = Vault([new_secret_key(), SECRET_KEY])
    with TestClient(create_app(replace(api_context, vault=vault)), raise_server_exceptions=False) as client:
        yield client


def test_keys_of_users_and_sandboxes_are_accepted(rotated: TestClient, database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user)
    session_key = {"X-Session-API-Key": session_key_of(sandbox)}
    assert rotated.get(ME, headers=user.headers).json()["user_id"] == user.id
    for headers in (user.headers, session_key):
        assert rotated.get(f"/sandbox/{sandbox.id}/x", headers=headers).status_code == 502  # nothing runs there
    assert rotated.post(f"/api/v1/webhooks/events/{'0' * 32}", json=[], headers=session_key).status_code == 200


def test_login_is_accepted_and_ends_with_signing_out(rotated: TestClient, client: TestClient, user: ApiUser) -> None:
    sign_in(client, user.key)
    cookie = {"Cookie": f"{COOKIE}={client.cookies[COOKIE]}"}
    assert rotated.get(ME, headers=cookie).json()["user_id"] == user.id
    assert rotated.post("/logout", headers=OURS | cookie, follow_redirects=False).status_code == 303
    assert [one.get(ME, headers=cookie).status_code for one in (rotated, client)] == [401, 401]
