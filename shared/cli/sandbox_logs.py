"""`agent-workspace sandboxes logs`: a user's command for their own sandboxes, an operator's for any in the database."""

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Annotated, Any

import typer

from shared.cli.output import cell_text, print_compact_json, showing, time_text
from shared.cli.remote.sandboxes import PATH, Id, sandboxes
from shared.cli.remote.service import opened, read_id, remote
from shared.container_logs.limits import MAX_LINES

# The pause between two requests for new lines.
FOLLOW_SECONDS = 1.0
LENGTH_OF_ID = 12
Logs = dict[str, Any]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until the sandbox is deleted.")]
Tail = Annotated[int, typer.Option("--tail", min=1, max=MAX_LINES, help="Max number of lines, counted from the end.")]
Times = Annotated[bool, typer.Option("--timestamps", "-t", help="Print the time of each line.")]
Local = Annotated[
    bool, typer.Option("--local", help="For operators: the kept logs of any user's sandbox, from the database.")
]


@sandboxes.command("logs")
@showing
@remote
def show_logs(
    sandbox_id: Id, follow: Follow = False, tail: Tail = MAX_LINES, timestamps: Times = False, local: Local = False
) -> None:
    """Print the logs of a sandbox's containers, even after these are removed. With `--json`, one JSON object per line.

    Standard error names each container, and says whether its log is live or a kept copy.
    """
    if local and follow:
        raise typer.BadParameter("--local prints what is kept; to follow a log, use the service")
    printer, hex_id = _Printer(with_times=timestamps), read_id(sandbox_id)
    if local:
        from shared.cli.local.environment import installation
        from shared.cli.local.status_operations import read_logs

        with installation().reading() as session:
            printer.print_logs(read_logs(session, hex_id, tail))
        return
    path = f"{PATH}/{hex_id}/logs"
    with opened() as service:

        def read(after: str | None) -> Logs:
            found: Logs = service.get(path, tail=tail, after=after)
            return found

        for logs in _follow(read) if follow else [read(None)]:
            printer.print_logs(logs)


def _follow(read: Callable[[str | None], Logs]) -> Iterator[Logs]:
    """Yield the logs, and then their new lines, until the sandbox is deleted."""
    logs = read(None)
    yield logs
    while not logs["is_deleted"]:
        time.sleep(FOLLOW_SECONDS)
        logs = read(logs["cursor"])
        yield logs


class _Printer:
    """Prints log lines, and on standard error a note whenever the container or the state of the log changes."""

    def __init__(self, *, with_times: bool) -> None:
        self._with_times = with_times
        self._container: str | None = None
        self._note = ""

    def print_logs(self, logs: Logs) -> None:
        for log in logs["containers"]:
            if log["lines"] and log["container_id"] != self._container:
                self._container = log["container_id"]
                typer.echo(f"--- {_describe(log)}", err=True)
            for line in log["lines"]:
                self._print_line(log, line)
        if (note := _note(logs)) != self._note:
            self._note = note
            typer.echo(f"--- {note}", err=True) if note else None

    def _print_line(self, log: Logs, line: Logs) -> None:
        shown = line | {"container_id": log["container_id"]}
        if not print_compact_json(shown, line["at"]):
            typer.echo(cell_text(f"{line['at']} {line['text']}" if self._with_times else line["text"]))


def _describe(log: Logs) -> str:
    cause = f", {log['cause']}" if log["cause"] else ""
    cut = ", earlier lines are missing" if log["is_cut"] else ""
    return f"container {cell_text(log['container_id'])[:LENGTH_OF_ID]}{cause}{cut}"


def _note(logs: Logs) -> str:
    if logs["is_live"]:
        return ""
    read = [datetime.fromisoformat(log["read_at"]) for log in logs["containers"]]
    known = f"this is its log as it was kept at {time_text(max(read))}" if read else "no log of it is kept"
    return f"{'the sandbox is deleted' if logs['is_deleted'] else 'the log is not live'}: {known}"
