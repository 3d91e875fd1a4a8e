"""`agent-workspace doctor`: diagnose this machine."""

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer

from shared.cli.exits import FAILED
from shared.cli.output import print_table, showing
from shared.settings import Settings

if TYPE_CHECKING:
    from shared.cli.checks.finding import Finding

doctor = typer.Typer(add_completion=False)
# Imported by these names at run time, because shared code depends on neither the API nor the worker.
MACHINE, WORKER = "worker.machine", "worker.settings"
PARTS = ("all", "installation", "engine")


@doctor.command("doctor")
@showing
def examine(
    only: Annotated[
        str,
        typer.Option(metavar="PART", help="installation (for a machine without an engine), engine, or all."),
    ] = PARTS[0],
) -> None:
    """Check settings, keys, database, clock, broker, ports, nodes, and the engine with what sandboxes need.

    Exit with 1 if something is wrong.
    """
    if only not in PARTS:
        raise typer.BadParameter(f"use one of {', '.join(PARTS)}", param_hint="--only")
    findings = list(_examine(only))
    wrong = [finding for finding in findings if finding.problem]
    rows = [
        (one.name, "wrong" if one.problem else "ok", one.problem or one.found, one.fix if one.problem else None)
        for one in findings
    ]
    print_table(("check", "result", "found", "fix"), rows)
    typer.echo(f"{len(wrong)} of {len(findings)} checks found a problem", err=True)
    raise typer.Exit(FAILED if wrong else 0)


def _examine(only: str) -> "Iterator[Finding]":
    if only != "engine":
        from shared.cli.checks.installation_checks import check_installation
        from shared.cli.checks.settings_check import check_settings_file

        yield check_settings_file((Settings, import_module(WORKER).WorkerSettings))
        yield from check_installation(Settings())
    if only != "installation":
        yield from import_module(MACHINE).check_machine()
