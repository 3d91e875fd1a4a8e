"""The launcher: each line of a process is prefixed with its name."""

import subprocess
from pathlib import Path


def launch(folder: Path, line: str, *, colour: int = 0) -> subprocess.CompletedProcess[str]:
    (folder / "Procfile").write_text(f"webber: echo wrong\nweb:   {line}\n")
    command = ["deploy/service/launch", "web", "2", "8", str(colour)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


def test_every_line_is_prefixed_with_its_process(folder: Path) -> None:
    done = launch(folder, "echo one; echo two >&2; echo; echo $PROCESS ${NONE:-else}: a/b")
    assert done.stdout.splitlines() == ["web.2    | " + words for words in ("one", "two", "", "web.2 else: a/b")]
    assert (done.stderr, done.returncode) == ("", 0)


def test_prefix_may_be_coloured(folder: Path) -> None:
    assert launch(folder, "echo one", colour=36).stdout == "\033[36mweb.2    | \033[0mone\n"


def test_launcher_exits_with_the_command_s_status(folder: Path) -> None:
    assert launch(folder, "exit 7").returncode == 7
