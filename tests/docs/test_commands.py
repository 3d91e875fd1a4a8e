"""Commands in the documentation exist: make targets with their variables, and the command line with its options."""

import re
from typing import Any

import pytest
from typer.main import get_command

from shared.cli.app import app
from shared.cli.lazy import LazyCommand
from tests.docs.documents import DOCS, DOCUMENTS, PAGES, list_code, list_inline_code
from tests.services.directories import REPOSITORY

MAKEFILE = (REPOSITORY / "Makefile").read_text()
TARGET = re.compile(r"^(?:\w+=\S+ )*make ([a-z]+)([^#]*)")
VARIABLE = re.compile(r"\b([A-Z_]+)=")
COMMAND_LINE = re.compile(r"^(?:(?:\.venv/bin/)?agent-workspace ((?!\.)[^|>#]+)|((?:specs|nodes) [a-z][^|>#]+))$")
OPTION = re.compile(r"--[a-z][a-z-]+")
HISTORY = (DOCS / "decisions", DOCS / "reports")
LIVING = [document for document in DOCUMENTS if document.parent not in HISTORY and document.name != "CHANGELOG.md"]


def test_make_targets_and_their_variables_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
    used = [found for page in LIVING for line in list_code(page.read_text()) if (found := TARGET.match(line))]
    assert used
    assert {found[1] for found in used} - targets == set()
    assert [name for found in used for name in VARIABLE.findall(found[2]) if f"$({name})" not in MAKEFILE] == []


def test_commands_and_their_options_exist() -> None:
    lines = [(page.name, line) for page in PAGES for line in list_code(page.read_text())]
    used = [(page, found[1] or found[2]) for page, line in lines if (found := COMMAND_LINE.match(line))]
    assert used
    assert [(page, line) for page, line in used if not is_command(line)] == []


def test_options_that_operators_read_of_exist() -> None:
    known = {option for command in list_commands(get_command(app)) for option in options_of(command)}
    pages = [page.read_text() for page in PAGES if page.parent.name in ("concepts", "operate")]
    code = [code for page in pages for code in list_inline_code(page)]
    assert [text for text in code if (found := OPTION.match(text)) and found[0] not in known] == []


def test_no_documented_command_replaces_a_file_that_is_not_the_service_s() -> None:
    lines = [(page.name, line) for page in PAGES for line in list_code(page.read_text())]
    files = [(page, found[1]) for page, line in lines if (found := re.match(r"cat >(/\S+)", line))]
    assert files
    own = ("/etc/agent-workspace/", "/etc/systemd/system/docker.service.d/")
    assert [file for file in files if not file[1].startswith(own)] == []


@pytest.mark.parametrize(
    ("line", "exists"),
    [
        ("nodes drain NAME", True),
        ("specs set <image> --warm 3", True),
        ("--help", True),
        ("nodes empty NAME", False),
        ("specs set <image> --cold 3", False),
    ],
)
def test_command_that_does_not_exist_is_found(line: str, exists: bool) -> None:
    assert is_command(line) == exists


def is_command(line: str) -> bool:
    """Whether the command line has that command, with these options."""
    command: Any = get_command(app)
    for word in line.split():
        if word.startswith("--") or not commands_of(command):
            break
        if word not in commands_of(command):
            return False
        command = commands_of(command)[word]
    return set(OPTION.findall(line)) <= options_of(command)


def commands_of(command: Any) -> dict[str, Any]:
    """The commands directly below a command, by their names."""
    return getattr(loaded(command), "commands", {})


def options_of(command: Any) -> set[str]:
    """The options of a command, in both their forms."""
    own = {name for parameter in loaded(command).params for name in (*parameter.opts, *parameter.secondary_opts)}
    return own | {"--help"}


def loaded(command: Any) -> Any:
    """A command itself, where the program has only its name."""
    return command.load() if isinstance(command, LazyCommand) else command


def list_commands(command: Any) -> list[Any]:
    """A command and all commands below it."""
    return [command, *(found for one in commands_of(command).values() for found in list_commands(one))]
