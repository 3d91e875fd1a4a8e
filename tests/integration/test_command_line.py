"""The remote command line against the real service, with a real sandbox."""

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.cli.app import main
from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.engine import TINY_IMAGE
from tests.shared.cli.results import Cli, Result

CONVERSATIONAL = {"TINY_CONVERSES": "1", "TINY_REPORTS": "1"}


@pytest.fixture
def service(installed: Deployment) -> Deployment:
    """The running service, with an image whose agent server runs commands and holds conversations."""
    installed.prepare()
    installed.add_spec(TINY_IMAGE, CONVERSATIONAL)
    installed.start()
    return installed


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line of a user's machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def run(*arguments: str) -> Result:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        return Result(int(ended.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def logged_in(
    cli: Cli, service: Deployment, alice: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Log in by the device flow; return a function that runs a command, which must succeed, and returns its output."""

    def approve(_seconds: float) -> None:
        found = re.search(r"user_code=([A-Z-]+)", capsys.readouterr().err)
        assert found is not None
        form = {"user_code": found[1], "decision": "approve", "api_key": alice.user.key}
        assert alice.post("/oauth/device/verify", data=form).status_code == 200

    with monkeypatch.context() as patch:
        patch.setattr("shared.cli.remote.login.time.sleep", approve)
        assert cli("login", service.url).status == 0

    def succeed(*arguments: str) -> str:
        response = cli(*arguments)
        assert response.status == 0, (arguments, response)
        return response.out.strip()

    return succeed


def test_command_line_manages_sandbox_and_conversation_from_login_to_deletion(
    logged_in: Callable[..., str], cli: Cli, alice: Client, tmp_path: Path
) -> None:
    alice.post("/api/settings", json={"llm_model": "openai/none", "llm_api_key": "k"})
    sandbox = logged_in("sandboxes", "start")
    assert logged_in("sandboxes", "exec", sandbox, "echo", "a  b") == "a  b"
    assert cli("sandboxes", "exec", sandbox, "exit 7").status == 7
    logged_in("sandboxes", "pause", sandbox)
    assert logged_in("sandboxes", "exec", sandbox, "echo awake") == "awake"
    conversation = logged_in("conversations", "start", "-m", "Hello", "--sandbox", sandbox)
    assert json.loads(logged_in("conversations", "show", conversation, "--json"))["id"] == conversation
    logged_in("conversations", "send", conversation, "And again")
    assert logged_in("conversations", "cancel", conversation) == "the agent is interrupted"
    logged_in("conversations", "download", conversation, "-o", "out.zip")
    assert zipfile.ZipFile(tmp_path / "out.zip").testzip() is None
    assert cli("sandboxes", "delete", sandbox).status == 2
    logged_in("sandboxes", "delete", sandbox, "--yes")
    logged_in("sandboxes", "wait", sandbox, "--for", "DELETED")
    history = json.loads(logged_in("sandboxes", "show", sandbox, "--json"))["history"]
    moves = [move["to_status"] for move in history]
    assert (moves[0], moves[-1], "PAUSED" in moves) == ("STARTING", "DELETED", True)
    assert "None" not in logged_in("sandboxes", "show", sandbox)
    logged_in("logout")
    assert cli("sandboxes", "list").status == 4
