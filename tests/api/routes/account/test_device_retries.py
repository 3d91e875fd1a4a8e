"""Polls of a device that fail for a while: programs that log in give up at an error without a code of RFC 8628."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.exc import OperationalError

from api.app import create_app
from api.request.context import Context
from shared.db.database import Database, Session
from tests.api.routes.account.test_device_login import TOKEN, begin, poll


def test_poll_without_a_database_is_repeated(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = begin(client)

    @contextmanager
    def fail(*_: object, **__: object) -> Iterator[Session]:
        raise OperationalError("", None, Exception("the server is restarting"))
        yield

    with monkeypatch.context() as patched:
        patched.setattr(Database, "transaction", fail)
        response = client.post(TOKEN, data={"device_code": begun["device_code"]})
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    document = response.json()
    assert (document["error"], document["interval"]) == ("slow_down", 5)
    assert document["error_description"] == document["detail"] == "the store does not respond; retry"
    assert poll(client, begun)[1]["error"] == "authorization_pending"


def test_poll_over_the_limit_of_its_address_is_repeated(context: Context) -> None:
    settings = context.settings.model_copy(update={"rate_device_polls": 1})
    client = TestClient(create_app(replace(context, settings=settings)))
    begun = begin(client)
    assert poll(client, begun)[1]["error"] == "authorization_pending"
    response = client.post(TOKEN, data={"device_code": begun["device_code"]})
    document = response.json()
    assert (response.status_code, document["error"]) == (429, "slow_down")
    assert str(document["interval"]) == response.headers["Retry-After"]
    assert document["error_description"] == document["detail"]
