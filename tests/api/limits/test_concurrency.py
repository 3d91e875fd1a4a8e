"""Limits on what each user may hold, which do not affect other users."""

import pytest
from fastapi.testclient import TestClient

from api.errors.limits import TooManyRequests
from api.errors.upstream import TemporarilyUnavailable
from api.limits.concurrency import ConcurrencyLimit
from api.limits.process import ProcessLimits
from shared.db.database import Database
from shared.models import Sandbox
from shared.states import Desired
from tests.factories import ApiUser, make_sandbox


def test_limit_applies_to_each_user_separately_and_to_the_process() -> None:
    limit = ConcurrencyLimit("things", of_user=1, of_process=2)
    with limit.hold("alice"):
        with pytest.raises(TooManyRequests, match="limit of 1 things"), limit.hold("alice"):
            pass
        with (
            limit.hold("bob"),
            pytest.raises(TemporarilyUnavailable, match="too many things"),
            limit.hold("carol"),
        ):
            pass
    with limit.hold("alice"), limit.hold("bob"):
        pass


def test_stream_over_the_limit_is_refused(client: TestClient, user: ApiUser, other_user: ApiUser) -> None:
    limits: ProcessLimits = client.app.state.context.limits  # type: ignore[attr-defined]
    limits.streams = ConcurrencyLimit("streams", of_user=1, of_process=9)
    with limits.streams.hold(user.id):
        for method, path in (("GET", "/api/v1/changes"), ("POST", "/api/v1/app-conversations/stream-start")):
            response = client.request(method, path, headers=user.headers, json={} if method == "POST" else None)
            assert (response.status_code, response.headers["Retry-After"]) == (429, "1")
        with limits.streams.hold(other_user.id):
            pass


def test_command_that_would_wait_over_the_limit_is_not_executed(
    client: TestClient, user: ApiUser, database: Database
) -> None:
    limits: ProcessLimits = client.app.state.context.limits  # type: ignore[attr-defined]
    limits.waiting = ConcurrencyLimit("requests that wait", of_user=1, of_process=9)
    sandbox = make_sandbox(database, user)
    pause = f"/api/v1/sandboxes/{sandbox.id}/pause"
    with limits.waiting.hold(user.id):
        response = client.post(pause, params={"wait": 5}, headers=user.headers)
        assert (response.status_code, "limit of 1 requests" in response.json()["detail"]) == (429, True)
        with database.reading() as session:
            assert session.get_one(Sandbox, sandbox.id).desired == Desired.RUNNING
        assert client.post(pause, headers=user.headers).status_code == 200
