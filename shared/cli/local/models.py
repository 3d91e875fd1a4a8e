"""`agent-workspace models`: the commands for model servers on private addresses."""

import typer

from shared.addresses import split_list
from shared.cli.local.environment import installation
from shared.cli.output import print_table, showing
from shared.settings import Settings

models = typer.Typer(
    help="Manage the model servers on private addresses that sandboxes may reach.", no_args_is_help=True
)


@models.command("list")
@showing
def list_models() -> None:
    """List the servers that are allowed, by these commands or by AW_MODEL_SERVERS."""
    from shared.nodes import model_servers

    configured = split_list(Settings().model_servers)
    rows: list[tuple[object, ...]] = [(address, "AW_MODEL_SERVERS", None) for address in configured]
    with installation().reading() as session:
        rows += [(row.address, "models allow", row.created_at) for row in model_servers.list_allowed(session)]
    print_table(("address", "allowed by", "since"), rows)


@models.command("allow")
def allow_model(address: str) -> None:
    """Let sandboxes reach a model server, such as 192.168.1.20:8000, if their owners' LLM settings name it."""
    from shared.nodes import model_servers

    with installation().writing() as session:
        allowed = model_servers.allow(session, address)
    typer.echo(f"allowed {allowed}")


@models.command("refuse")
def refuse_model(address: str) -> None:
    """Stop letting sandboxes reach a model server. Open connections end, too."""
    from shared.nodes import model_servers

    with installation().writing() as session:
        refused = model_servers.refuse(session, address)
    typer.echo(f"refused {refused}")
