"""The remote command line against the API in this process, or against scripted answers."""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from shared.cli.app import main
from tests.factories import ApiUser
from tests.shared.cli.results import Cli, Result

URL = "http://service.test"
Handler = Callable[[httpx.Request], httpx.Response]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command in this process, on a machine without a context."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    # Only in these modules, because other threads sleep too.
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _seconds: None)
    for module in ("remote.conversations", "remote.login", "remote.waiting", "sandbox_logs"):
        monkeypatch.setattr(f"shared.cli.{module}.time", clock)

    def run(*arguments: str) -> Result:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out, err = capsys.readouterr()
        return Result(int(ended.value.code or 0), out, err)

    return run


@pytest.fixture
def served(run: Cli, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line of a user that is not logged in to the API yet."""
    connect(monkeypatch, client._transport)
    return run


@pytest.fixture
def alice(served: Cli, user: ApiUser, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line of a user of the API."""
    log_in(monkeypatch, user.key)
    return served


@pytest.fixture
def scripted(run: Cli, monkeypatch: pytest.MonkeyPatch) -> Callable[[Handler], Cli]:
    """A function that makes a command line whose requests get scripted responses."""

    def scripted(handler: Handler) -> Cli:
        connect(monkeypatch, httpx.MockTransport(handler))
        log_in(monkeypatch, "key")
        return run

    return scripted


def connect(monkeypatch: pytest.MonkeyPatch, transport: httpx.BaseTransport) -> None:
    """Send the requests of all commands to this transport."""
    open_client = httpx.Client

    def open_scripted_client(**options: Any) -> httpx.Client:
        return open_client(**options, transport=transport)

    monkeypatch.setattr("httpx.Client", open_scripted_client)


def log_in(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """Use the service as a program in CI does."""
    monkeypatch.setenv("AGENT_WORKSPACE_URL", URL)
    monkeypatch.setenv("AGENT_WORKSPACE_KEY", key)
