"""`agent-workspace models`: the commands for model servers on private addresses."""

import typer

from shared.cli.local.operations import model_operations
from shared.cli.output import print_table, showing

models = typer.Typer(
    help="Manage the model servers on private addresses that sandboxes may reach.", no_args_is_help=True
)


@models.command("list")
@showing
def list_models() -> None:
    """List the servers that are allowed, by these commands or by AW_MODEL_SERVERS."""
    operations = model_operations()
    rows: list[tuple[object, ...]] = [(address, "AW_MODEL_SERVERS", None) for address in operations.list_configured()]
    rows += [(row.address, "models allow", row.created_at) for row in operations.list_allowed()]
    print_table(("address", "allowed by", "since"), rows)


@models.command("allow")
def allow_model(address: str) -> None:
    """Let sandboxes reach a model server, such as 192.168.1.20:8000, if their owners' LLM settings name it."""
    typer.echo(f"allowed {model_operations().allow(address)}")


@models.command("refuse")
def refuse_model(address: str) -> None:
    """Stop letting sandboxes reach a model server. Open connections end, too."""
    typer.echo(f"refused {model_operations().refuse(address)}")
