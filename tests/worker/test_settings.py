"""Settings of workers."""

from typing import Any

import pytest
from pydantic import ValidationError

from worker.settings import WorkerSettings


@pytest.mark.parametrize(
    ("values", "door"),
    [
        ({}, "http://127.0.0.1:3001"),
        ({"node_address": "10.0.0.5", "door_port": 81}, "http://10.0.0.5:81"),
        ({"node_address": "2001:db8::2"}, "http://[2001:db8::2]:3001"),
        ({"advertised_host": "node-a", "door_certificate": "/etc/door.pem"}, "https://node-a:3001"),
    ],
)
def test_url_of_the_door(values: dict[str, Any], door: str) -> None:
    settings = WorkerSettings(**values)
    assert settings.door_url == door
    assert settings.webhook_url == f"http://host.docker.internal:{settings.door_port}/api/v1/webhooks"


def test_node_without_a_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_NODE", "")
    with pytest.raises(ValidationError, match="at least 1 character"):
        WorkerSettings()
