"""Command lines that run in this process."""

from pathlib import Path

import pytest

from shared.cli.app import main
from tests.shared.cli.results import Cli, Result


@pytest.fixture
def var(tmp_path: Path) -> Path:
    """The var directory, which does not exist yet."""
    return tmp_path / "var"


@pytest.fixture
def cli(
    database_url: str, var: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Cli:
    """Run a command in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AW_DATABASE_URL", database_url)
    monkeypatch.setenv("AW_VAR_DIR", str(var))
    monkeypatch.setattr("shared.observability.logs.configure_logs", lambda *_: None)  # they would outlive the test

    def run(*arguments: str) -> Result:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        status, (out, err) = ended.value.code, capsys.readouterr()
        return Result(1, out, err + status + "\n") if isinstance(status, str) else Result(status or 0, out, err)

    return run


@pytest.fixture
def migrated(cli: Cli) -> Cli:
    """The command line, after `migrate`."""
    assert cli("migrate").status == 0
    return cli
