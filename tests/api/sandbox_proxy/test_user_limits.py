"""Limits for each user, which do not affect other users."""

import json

import httpx
import pytest
from fastapi.testclient import TestClient
from websockets.exceptions import ConnectionClosed

from api.errors.upstream import TemporarilyUnavailable
from api.realtime import change_streams
from api.sandbox_proxy.user_limits import UserLimit
from shared.models import Sandbox
from tests.api.sandbox_proxy.test_websocket import EVENTS, socket
from tests.factories import Person, session_key_of


def test_limit_applies_to_each_user_separately() -> None:
    limit = UserLimit(1, "things")
    with limit.hold("alice"):
        with pytest.raises(TemporarilyUnavailable, match="limit of 1 things"), limit.hold("alice"):
            pass
        with limit.hold("bob"):
            pass
    with limit.hold("alice"):
        pass


def test_websocket_over_the_limit_is_closed(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, running: Sandbox
) -> None:
    monkeypatch.setattr("api.sandbox_proxy.websocket.MAX_OF_USER", 1)
    api: httpx.Client = request.getfixturevalue("api")
    auth = json.dumps({"type": "auth", "session_api_key": session_key_of(running)})
    with socket(api, running, EVENTS) as first:
        first.send(auth)
        first.recv(timeout=20)
        with socket(api, running, EVENTS) as second:
            second.send(auth)
            with pytest.raises(ConnectionClosed):
                second.recv(timeout=20)
            assert second.close_code == 1013


def test_websocket_without_a_key_over_the_limit_is_closed(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, running: Sandbox
) -> None:
    monkeypatch.setattr("api.sandbox_proxy.websocket.MAX_AWAITING_KEY", 1)
    api: httpx.Client = request.getfixturevalue("api")
    key = session_key_of(running)
    with socket(api, running, EVENTS) as idle:
        with socket(api, running, EVENTS) as second:
            with pytest.raises(ConnectionClosed):
                second.recv(timeout=20)
            assert second.close_code == 1013
        with socket(api, running, f"{EVENTS}&session_api_key={key}") as with_key:
            assert with_key.recv(timeout=20)
        idle.send(json.dumps({"type": "auth", "session_api_key": key}))
        assert idle.recv(timeout=20)
        with socket(api, running, EVENTS) as third:
            third.send(json.dumps({"type": "auth", "session_api_key": key}))
            assert third.recv(timeout=20)


def test_stream_over_the_limit_is_refused(client: TestClient, user: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_streams, "MAX_OF_ONE", 0)
    answer = client.get("/api/v1/changes", headers=user.headers)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
