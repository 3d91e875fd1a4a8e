"""`agent-workspace context`: the commands for contexts."""

from typing import Annotated

import typer

from shared.cli.output import print_details, print_table, showing
from shared.cli.remote import contexts as stored

contexts = typer.Typer(help="Choose between the services you use. `login` adds one.", no_args_is_help=True)


@contexts.command("list")
@showing
def list_contexts() -> None:
    """List the services that you are logged in to."""
    found = stored.load()
    rows = [(name, one.url, name == found.current) for name, one in sorted(found.by_name.items())]
    print_table(("name", "url", "in use"), rows)


@contexts.command("use")
def use_context(name: str) -> None:
    """Use a context for all commands without `--context`."""
    stored.save(stored.load().use(name))
    typer.echo(f"the context {name} is in use")


@contexts.command("show")
@showing
def show_context(name: Annotated[str | None, typer.Argument(help="Default: the one in use.")] = None) -> None:
    """Show a context, without its key."""
    found = stored.load()
    print_details({"name": name or found.current, "url": found.get(name).url, "file": str(stored.file_path())})


@contexts.command("remove")
def remove_context(name: str) -> None:
    """Forget a context. Its key stays valid: `logout` revokes it."""
    stored.save(stored.load().remove(name))
    typer.echo(f"removed {name}")
