"""What the start of the service creates before its processes."""

import pytest

from deploy.service import start
from shared.settings import Settings


@pytest.mark.parametrize("needs_image", [True, False])
def test_image_is_built_beside_a_worker_only(monkeypatch: pytest.MonkeyPatch, needs_image: bool) -> None:
    """A machine that runs the API alone may have no engine."""
    commands: list[str] = []
    monkeypatch.setattr(start, "_run", lambda *command, **_: commands.append(command[0]))
    start.prepare(Settings(), needs_image=needs_image)
    assert (str(start.IMAGE_BUILD) in commands, commands[-2:]) == (needs_image, ["agent-workspace"] * 2)
