"""What one user may hold at a time: others get theirs all the same."""

import json

import httpx
import pytest
from fastapi.testclient import TestClient
from websockets.exceptions import ConnectionClosed

from api.errors.upstream import TemporarilyUnavailable
from api.realtime import change_streams
from api.sandbox_proxy.user_limits import Shares
from shared.models import Sandbox
from tests.api.sandbox_proxy.test_websocket import EVENTS, socket
from tests.factories import Person, session_key_of


def test_a_user_holds_so_many_and_others_theirs() -> None:
    shares = Shares(1, "things")
    with shares.taking("alice"):
        with pytest.raises(TemporarilyUnavailable, match="1 things of yours"), shares.taking("alice"):
            pass
        with shares.taking("bob"):
            pass
    with shares.taking("alice"):
        pass


def test_one_websocket_too_many_is_closed(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, running: Sandbox
) -> None:
    monkeypatch.setattr("api.sandbox_proxy.websocket.MAX_OF_ONE", 1)
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


def test_one_stream_too_many_is_refused(client: TestClient, user: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_streams, "MAX_OF_ONE", 0)
    answer = client.get("/api/v1/changes", headers=user.headers)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
