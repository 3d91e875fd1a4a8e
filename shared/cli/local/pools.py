"""`agent-workspace pools`: the commands for warm pools."""

import typer

from shared.cli.local.environment import installation
from shared.cli.output import print_table, showing

pools = typer.Typer(help="Show warm pools: sandboxes booted in advance. `specs set --warm` changes them.")


@pools.callback(no_args_is_help=True)
def _group() -> None:
    pass


@pools.command("list")
@showing
def list_pools() -> None:
    """List warm pools with their ready and booting sandboxes."""
    from shared.sandboxes import specs
    from shared.warm_pool import pool

    with installation().reading() as session:
        counted = pool.count(session)
        rows = [
            (spec.id, spec.warm_target, spec.warm_most, *counted.get(spec.id, (0, 0)), spec.warm_detail)
            for spec in specs.list_specs(session)
            if spec.warm_target or spec.id in counted
        ]
    print_table(("image", "target", "max", "ready", "booting", "detail"), rows)
