"""What the start of the service creates before its processes, and what these get from it."""

import os
from pathlib import Path

import pytest

from deploy.service import start
from shared.settings import Settings
from tests.services.directories import REPOSITORY
from worker.settings import WorkerSettings


@pytest.mark.parametrize("needs_image", [True, False])
def test_image_is_built_beside_a_worker_only(monkeypatch: pytest.MonkeyPatch, needs_image: bool) -> None:
    """A machine that runs the API alone may have no engine."""
    commands: list[str] = []
    monkeypatch.setattr(start, "_run", lambda *command, **_: commands.append(command[0]))
    start.prepare(Settings(), needs_image=needs_image)
    assert (str(start.IMAGE_BUILD) in commands, commands[-2:]) == (needs_image, ["agent-workspace"] * 2)


@pytest.mark.parametrize(
    ("line", "processes", "is_on"),
    [("", "flower=1", True), ("", "flower=0", False), ("AW_REMOTE_CONTROL=off", "", False)],
)
def test_workers_accept_remote_control_for_flower_unless_it_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, processes: str, is_on: bool
) -> None:
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "env").write_text(f"{line}\n")
    (tmp_path / "Procfile").write_text((REPOSITORY / "Procfile").read_text())
    monkeypatch.chdir(tmp_path)
    # The start changes both, and the test restores them.
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setenv("AW_REMOTE_CONTROL", "")
    monkeypatch.delenv("AW_REMOTE_CONTROL")
    for step in ("refuse_taken_ports", "prepare", "hold_sockets"):
        monkeypatch.setattr(start, step, lambda *_, **__: None)
    found: list[bool] = []
    monkeypatch.setattr(start, "supervise", lambda _: found.append(WorkerSettings().remote_control))
    start.main([processes] if processes else [])
    assert found == [is_on]
