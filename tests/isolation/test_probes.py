"""A probe that can't find what it attacks is reported as broken: it would otherwise count as blocked."""

import os

import pytest

from tests.isolation.probes import base


def test_probe_without_an_agent_server_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "listdir", lambda _path: [])
    assert base.probe("agent_server", {}) == {
        "reached": False,
        "evidence": "LookupError: no agent server",
        "broken": True,
    }
