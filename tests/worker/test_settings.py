"""Warnings of a worker about its configuration."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from shared.settings import Settings
from worker.__main__ import warn_of_shared_host
from worker.settings import WorkerSettings


def events(web_url: str, settings: dict[str, Any]) -> list[str]:
    with capture_logs() as logs:
        warn_of_shared_host(Settings(web_url=web_url), WorkerSettings(**settings))
    return [line["event"] for line in logs]


@pytest.mark.parametrize(
    ("web_url", "settings"),
    [
        ("", {"node_address": "127.0.0.1"}),
        ("http://localhost:3000", {"node_address": "127.0.0.1"}),
        ("http://localhost:3000", {"advertised_host": "localhost"}),
        ("", {"advertised_host": "localhost"}),
        ("https://Agents.example.com/", {"advertised_host": "agents.example.com"}),
    ],
)
def test_host_shared_by_sandboxes_and_api_is_logged(web_url: str, settings: dict[str, str]) -> None:
    assert events(web_url, settings) == ["host_shared_with_api"]


@pytest.mark.parametrize(
    ("web_url", "settings"),
    [
        ("", {}),
        ("http://localhost:3000", {}),
        ("https://agents.example.com", {"advertised_host": "node-a.example.com"}),
    ],
)
def test_separate_host_is_not_logged(web_url: str, settings: dict[str, str]) -> None:
    assert events(web_url, settings) == []
