"""`agent-workspace`: the command line. `--help` imports no command, and each command imports what it needs."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from shared import __version__
from shared.cli.exits import INTERRUPTED, fail
from shared.cli.lazy import Command, LazyCommand
from shared.cli.output import NAME

USE = "Use a service, from any machine"
OPERATE = "Operate a service, on its machine"
COMMANDS = {
    "login": Command("shared.cli.remote.login:login", "Log in to a service with a browser.", USE),
    "logout": Command("shared.cli.remote.login:logout", "Revoke this machine's key and remove its context.", USE),
    "context": Command("shared.cli.remote.context_commands:contexts", "Choose between the services that you use.", USE),
    "sandboxes": Command("shared.cli.sandbox_logs:sandboxes", "Start, use, pause and delete sandboxes.", USE),
    "conversations": Command("shared.cli.remote.conversations:conversations", "Start and follow conversations.", USE),
    "keys": Command("shared.cli.keys:keys", "Manage your own API keys or, as an operator, any user's.", USE),
    "explain": Command("shared.cli.checks.explain:explain", "Explain a reason and how to fix its cause.", USE),
    "all": Command("shared.cli.service.processes:everything", "Run the service on this machine.", OPERATE),
    "server": Command("shared.cli.service.processes:server", "Run one API process.", OPERATE),
    "worker": Command("shared.cli.service.processes:worker", "Run a worker beside a Docker Engine.", OPERATE),
    "status": Command("shared.cli.checks.status:status", "Show nodes, sandboxes and waiting work.", OPERATE),
    "doctor": Command("shared.cli.checks.doctor:doctor", "Diagnose problems on this machine.", OPERATE),
    "users": Command("shared.cli.local.users:users", "Manage users.", OPERATE),
    "specs": Command("shared.cli.local.specs:specs", "Manage sandbox specs. The first spec is the default.", OPERATE),
    "pools": Command("shared.cli.local.pools:pools", "Manage warm pools: sandboxes booted in advance.", OPERATE),
    "nodes": Command("shared.cli.local.nodes:nodes", "Manage nodes: Docker Engines with their workers.", OPERATE),
    "models": Command("shared.cli.local.models:models", "Manage model servers on private addresses.", OPERATE),
    "settings": Command("shared.cli.local.service:configuration", "Show the configuration.", OPERATE),
    "db": Command("shared.cli.local.database:database", "Migrate, check, back up and restore the database.", OPERATE),
    # What `make run` calls.
    "migrate": Command("shared.cli.local.database:migration", "The same as `db migrate`.", OPERATE, hidden=True),
    "bootstrap": Command(
        "shared.cli.local.service:first_user", "Create the first user, `admin`.", OPERATE, hidden=True
    ),
    "broker": Command("shared.cli.local.service:embedded", "Run the embedded broker.", OPERATE, hidden=True),
}


class Root(TyperGroup):
    """The program. Each command is loaded when it is used."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, source in COMMANDS.items():
            self.add_command(LazyCommand(name, source))

    def invoke(self, ctx: Any) -> Any:
        """Run a command. Ctrl-C at a prompt ends it as interrupted, as elsewhere; Typer would end it as failed."""
        try:
            return super().invoke(ctx)
        except typer.Abort:
            raise typer.Exit(INTERRUPTED) from None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands in the help, each under its panel."""
        for panel in (USE, OPERATE):
            with formatter.section(panel):
                listed = ((name, source) for name, source in COMMANDS.items() if source.panel == panel)
                formatter.write_dl([(name, source.summary) for name, source in listed if not source.hidden])


app = typer.Typer(
    cls=Root,
    help="Use an Agent Workspace service from any machine, or operate one on its own machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def print_version(wanted: bool) -> None:
    """Print the version and end, if `--version` is given."""
    if wanted:
        typer.echo(f"{NAME} {__version__}")
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Define the options of the program itself."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command. An error prints one line to standard error; `shared.cli.exits` has the statuses."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name=NAME)
    except Exception as error:  # noqa: BLE001 - a user gets one line, not a traceback
        fail(error, NAME)
