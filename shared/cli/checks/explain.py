"""`agent-workspace explain`: what a reason means, from the troubleshooting page."""

import textwrap
from typing import Annotated

import typer

from shared.cli.output import print_details, print_table, showing
from shared.reasons import explain as find
from shared.reasons import explanations

explain = typer.Typer(add_completion=False)
PARTS = ("meaning", "cause", "check", "fix", "data")
WIDTH = 88


@explain.command("explain")
@showing
def explain_reason(
    reason: Annotated[str | None, typer.Argument(help="A reason, such as oom_killed. Default: list all.")] = None,
) -> None:
    """Explain a reason or a start-up error: cause, check, fix, and the effect on the data."""
    if reason is None:
        print_table(("name", "title"), [(entry.name, entry.title) for entry in explanations().values()])
        return
    entry = find(reason)
    parts = {part: "\n".join(textwrap.wrap(getattr(entry, part), WIDTH)) for part in PARTS}
    details = {"name": entry.name, **{part: text for part, text in parts.items() if text}, "page": entry.document}
    print_details(details, vars(entry) | {"page": entry.document})
