"""The program itself: its imports, its output on each stream, and its prompts."""

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
import typer
from typer.testing import CliRunner

from shared.cli.app import app
from shared.db.database import Database
from tests.factories import make_node
from tests.shared.cli.results import Cli

SLOW = ("sqlalchemy", "pydantic", "httpx", "rich", "celery", "structlog")
# The columns of `specs list` that fit on a terminal.
HEADINGS = ["image", "memory", "MB", "cpus", "disk", "warm", "egress"]
LOADED = """
import sys
from shared.cli.app import main
try: main(sys.argv[1:])
except SystemExit: pass
print([name for name in {slow!r} if name in sys.modules], file=sys.stderr)
"""


def loaded_by(*arguments: str) -> str:
    """The slow modules that a command imports."""
    program = [sys.executable, "-c", LOADED.format(slow=SLOW), *arguments]
    return subprocess.run(program, capture_output=True, text=True, check=True, timeout=120).stderr.strip()


def test_help_imports_no_slow_module() -> None:
    assert loaded_by("--help") == "[]"
    assert loaded_by("sandboxes", "--help") in {"[]", "['pydantic']"}, "Typer reads values with Pydantic"


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that simulates a terminal whose user enters an answer."""

    def on_terminal(*, yes: bool) -> None:
        monkeypatch.setenv("TERM", "dumb")
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            monkeypatch.setattr(stream, "isatty", lambda: True)
        monkeypatch.setattr("typer.confirm", lambda *_, **__: yes)

    return on_terminal


@pytest.mark.parametrize(("yes", "status", "becomes"), [(True, 0, "CORDONED"), (False, 1, "READY")])
def test_change_needs_a_confirmation_on_a_terminal(
    migrated: Cli, database: Database, on_terminal: Callable[..., None], yes: bool, status: int, becomes: str
) -> None:
    make_node(database, "a")
    on_terminal(yes=yes)
    assert migrated("nodes", "drain", "a").status == status
    assert becomes in migrated("nodes", "list").out


def test_interrupt_at_a_prompt_exits_as_interrupted(
    migrated: Cli, database: Database, on_terminal: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def press_ctrl_c(*_: object, **__: object) -> bool:
        raise typer.Abort

    make_node(database, "a")
    on_terminal(yes=True)
    monkeypatch.setattr("typer.confirm", press_ctrl_c)
    assert migrated("nodes", "drain", "a").status == 130
    assert "CORDONED" not in migrated("nodes", "list").out


def test_terminal_gets_a_table_and_programs_get_json_or_ids(
    migrated: Cli, database: Database, on_terminal: Callable[..., None]
) -> None:
    make_node(database, "a", detail="back\x1b[2Jslash")
    assert migrated("nodes", "list", "-q").out == "a\n"
    [node] = json.loads(migrated("nodes", "list", "--json").out)
    assert (node["id"], node["detail"]) == ("a", "back\x1b[2Jslash")
    assert migrated("nodes", "list", "--json", "-q").status == 2
    on_terminal(yes=True)
    assert "\t" not in migrated("nodes", "list").out
    assert "\x1b[2J" not in migrated("nodes", "list").out
    assert migrated("specs", "list").out.splitlines()[0].split() == HEADINGS
    assert "working dir" in migrated("specs", "show", "agent-workspace/sandbox:1.58.2").out


def test_subcommands_and_options_are_completed() -> None:
    def complete(line: str) -> list[str]:
        environment = {
            "_AGENT_WORKSPACE_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(line.count(" ")),
        }
        return CliRunner().invoke(app, prog_name="agent-workspace", env=environment).output.split()

    assert complete("agent-workspace san") == ["sandboxes"]
    assert complete("agent-workspace sandboxes re") == ["resume"]
    assert "--follow" in complete("agent-workspace conversations events --f")
