"""Limits of websockets."""

import json

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from shared.models import Sandbox
from tests.api.sandbox_proxy.doubles import Serve
from tests.api.sandbox_proxy.test_websocket import EVENTS, socket
from tests.factories import session_key_of


def test_websocket_over_the_limit_is_closed(serve: Serve, running: Sandbox) -> None:
    auth = json.dumps({"type": "auth", "session_api_key": session_key_of(running)})
    with serve(user_websockets=1) as api, socket(api, running, EVENTS) as first:
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
