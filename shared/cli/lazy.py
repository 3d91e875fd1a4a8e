"""Commands that are imported only when they are used: most of them need modules that are slow to import."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand
from typer.main import get_command


@dataclass(frozen=True)
class Command:
    """Where a command is, and what its parent's help says about it.

    Args:
        path: `module:attribute` of its `typer.Typer`, which has either one command or several.
        summary: its line in the help.
        panel: the part of the help in which the line stands.
        hidden: whether the help leaves it out.
    """

    path: str
    summary: str
    panel: str
    hidden: bool = False


class LazyCommand(TyperCommand):
    """A command's name and summary. The command itself is loaded when it is called or completed."""

    def __init__(self, name: str, source: Command) -> None:
        super().__init__(name, help=source.summary, rich_help_panel=source.panel, hidden=source.hidden)
        self._path = source.path

    def load(self) -> Any:
        """Import the command."""
        module, _, attribute = self._path.partition(":")
        application: typer.Typer = getattr(import_module(module), attribute)
        application.rich_markup_mode = None  # Rich takes longer to import than everything else
        command = get_command(application)
        command.name = self.name
        return command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Load the command, and parse its arguments. The returned context runs the loaded command."""
        return self.load().make_context(info_name, args, parent, **extra)
