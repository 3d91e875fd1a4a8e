"""The calls of PostgreSQL's programs."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from shared.backup import postgresql


@pytest.mark.parametrize(
    "url", ["postgresql+psycopg://u:hush@store.test:1/d?a=b", "postgresql+psycopg://u@store.test:1/d?a=b&password=hush"]
)
def test_password_is_in_no_argument(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every user of the machine can read the arguments of a process."""
    called: list[tuple[list[str], dict[str, str]]] = []

    def run(command: list[str], *, env: dict[str, str], **_: Any) -> Any:
        called.append((command, env))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(postgresql, "_server_version", lambda _url: 15)
    monkeypatch.setattr(postgresql, "_find", lambda name, _version: Path(name))
    monkeypatch.setattr(subprocess, "run", run)
    postgresql.dump(url, tmp_path / "store.dump")
    [(command, environment)] = called
    assert (environment["PGPASSWORD"], "hush" in " ".join(command)) == ("hush", False)
    assert "--dbname=postgresql://u@store.test:1/d?a=b" in command
