"""`agent-workspace sandboxes`: the commands for the caller's sandboxes."""

import shlex
import sys
import time
import uuid
from enum import StrEnum
from typing import Annotated, Any, TextIO

import typer

from shared.cli.confirmation import Yes, confirm
from shared.cli.output import NAME, cell_text, print_details, print_table, read_fields, showing, writable
from shared.cli.remote.service import RemoteService, TimedOut, failure, opened, read_id, remote, without_key
from shared.cli.remote.waiting import Timeout, Wait, wait_for

sandboxes = typer.Typer(help="Start, use, pause and delete sandboxes.", no_args_is_help=True)

PATH = "/api/v1/sandboxes"
ON_TERMINAL = ("id", "status", "reason", "last active")
COLUMNS = ("id", "status", "reason", "sandbox_spec_id", "created_at", "last_active_at")
DETAILS = (*COLUMNS, "pause_kind", "desired_status", "expires_at", "detail")
HISTORY = ("at", "to_status", "reason", "pause_kind")
# The exit code that an agent server reports for a command that has timed out or was never started.
NO_EXIT_CODE = -1
SECONDS = 180.0
# How much longer the response to a command may take than the command.
ANSWER_SECONDS = 30.0
Id = Annotated[str, typer.Argument(metavar="ID", help="The sandbox's id.")]


class AwaitedStatus(StrEnum):
    """A status that can be awaited."""

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    ERROR = "ERROR"
    DELETED = "DELETED"


@sandboxes.command("list")
@showing
@remote
def list_sandboxes(
    status: Annotated[str | None, typer.Option(help="Only this status: STARTING, RUNNING, PAUSED or ERROR.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Max number, newest first.")] = 100,
) -> None:
    """List sandboxes, newest first."""
    with opened() as service:
        found = service.list_all(f"{PATH}/search", limit, status__eq=status)
    header = ("id", "status", "reason", "spec", "created", "last active")
    rows = [read_fields(sandbox, COLUMNS) for sandbox in found]
    print_table(header, rows, ON_TERMINAL, objects=[without_key(sandbox) for sandbox in found])


@sandboxes.command("start")
@remote
def start_sandbox(
    spec: Annotated[str | None, typer.Option(help="Image of the spec. Default: the service's default spec.")] = None,
    wait: Wait = True,
    timeout: Timeout = SECONDS,
) -> None:
    """Start a sandbox, print its id, and wait until it runs."""
    with opened() as service:
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        # The request itself doesn't wait: after a Ctrl-C or a lost connection, the user knows the id.
        started = service.request("POST", PATH, query={"sandbox_spec_id": spec}, headers=headers)
        typer.echo(started["id"])
        if wait:
            await_status(service, started["id"], AwaitedStatus.RUNNING, timeout)


@sandboxes.command("show")
@showing
@remote
def show_sandbox(sandbox_id: Id) -> None:
    """Show a sandbox and the history of its status, also for 30 days after it is deleted."""
    with opened() as service:
        sandbox = _read(service, sandbox_id)
        moves = service.get(f"{PATH}/{read_id(sandbox_id)}/transitions")
    shown = without_key(sandbox or {"id": read_id(sandbox_id), "status": AwaitedStatus.DELETED})
    lines = [" ".join(filter(None, map(cell_text, read_fields(move, HISTORY)))) for move in moves]
    details = dict(zip(DETAILS, read_fields(shown, DETAILS), strict=True)) | {"history": "\n".join(lines)}
    print_details(
        {name: value for name, value in details.items() if value not in (None, "")}, shown | {"history": moves}
    )
    if sandbox and sandbox.get("reason"):
        typer.echo(f"what to do: `{NAME} explain {sandbox['reason']}`", err=True)


@sandboxes.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@remote
def execute(
    sandbox_id: Id,
    command: Annotated[
        list[str], typer.Argument(help="One argument: a shell command. Several: a program and its arguments.")
    ],
    directory: Annotated[str | None, typer.Option("--cwd", help="Working directory of the command.")] = None,
    timeout: Annotated[int, typer.Option(min=1, help="Max seconds for the command.")] = 300,
) -> None:
    """Run a command in a sandbox, print its output when it ends, and exit with its status. Resumes a paused sandbox."""
    line = command[0] if len(command) == 1 else shlex.join(command)
    body = {"command": line, "timeout": timeout} | ({"cwd": directory} if directory else {})
    path = f"/sandbox/{read_id(sandbox_id)}/api/bash/execute_bash_command"
    with opened() as service:
        outcome = service.request("POST", path, body=body, seconds=timeout + ANSWER_SECONDS)
    typer.echo(_printable(outcome.get("stdout"), sys.stdout), nl=False)
    typer.echo(_printable(outcome.get("stderr"), sys.stderr), nl=False, err=True)
    if outcome["exit_code"] == NO_EXIT_CODE:
        raise TimedOut(f"the command did not end within {timeout} s, or could not be started")
    raise typer.Exit(int(outcome["exit_code"]) & 0xFF)


@sandboxes.command("pause")
@remote
def pause_sandbox(
    sandbox_id: Id,
    stop: Annotated[bool, typer.Option("--stop", help="Also free the sandbox's memory; its files are kept.")] = False,
    wait: Wait = True,
    timeout: Timeout = SECONDS,
) -> None:
    """Pause a sandbox. Its files are kept and, without `--stop`, its memory, too."""
    with opened() as service:
        kind = "stopped" if stop else "frozen"
        _command(service, "POST", sandbox_id, "/pause", AwaitedStatus.PAUSED, timeout if wait else None, kind=kind)


@sandboxes.command("resume")
@remote
def resume_sandbox(sandbox_id: Id, wait: Wait = True, timeout: Timeout = SECONDS) -> None:
    """Resume a paused sandbox, or restart one in ERROR."""
    with opened() as service:
        _command(service, "POST", sandbox_id, "/resume", AwaitedStatus.RUNNING, timeout if wait else None)


@sandboxes.command("delete")
@remote
def delete_sandbox(sandbox_id: Id, yes: Yes = False, wait: Wait = True, timeout: Timeout = SECONDS) -> None:
    """Delete a sandbox with its files, from any state."""
    with opened() as service:
        service.get(f"{PATH}/{read_id(sandbox_id)}")
        confirm(f"Delete {sandbox_id} with its files?", yes=yes)
        _command(service, "DELETE", sandbox_id, "", AwaitedStatus.DELETED, timeout if wait else None)


@sandboxes.command("wait")
@remote
def wait_sandbox(
    sandbox_id: Id,
    status: Annotated[AwaitedStatus, typer.Option("--for", help="The status to wait for.")] = AwaitedStatus.RUNNING,
    timeout: Timeout = SECONDS,
) -> None:
    """Wait until a sandbox has a status. If it is in ERROR instead, exit with 1."""
    with opened() as service:
        await_status(service, sandbox_id, status, timeout)


def await_status(
    service: RemoteService, sandbox_id: str, status: AwaitedStatus, seconds: float, *, since: float | None = None
) -> None:
    """Wait until a sandbox has that status.

    Args:
        since: when the `seconds` began, by the monotonic clock; None: now.

    Raises:
        Missing: there is no such sandbox, or it was deleted.
        TimedOut: it does not have the status in time.
        WorkspaceError: it is in ERROR instead.
    """
    hex_id = read_id(sandbox_id)

    def reached() -> bool | None:
        if status == AwaitedStatus.DELETED:
            return service.get(f"{PATH}/{hex_id}/transitions")[-1]["to_status"] == status or None
        sandbox = service.get(f"{PATH}/{hex_id}")
        if sandbox["status"] == AwaitedStatus.ERROR != status:
            raise failure("the sandbox is in ERROR", sandbox)
        return sandbox["status"] == status or None

    wait_for(reached, seconds, f"{status} of the sandbox {hex_id}", since=since)


def _command(
    service: RemoteService,
    method: str,
    sandbox_id: str,
    path: str,
    status: AwaitedStatus,
    seconds: float | None,
    **query: Any,
) -> None:
    """Send a command, and wait for at most `seconds` until its sandbox has that status; None: do not wait."""
    began = time.monotonic()
    service.settle(method, f"{PATH}/{read_id(sandbox_id)}{path}", seconds or 0, **query)
    if seconds is not None:
        await_status(service, sandbox_id, status, seconds, since=began)


def _printable(output: str | None, stream: TextIO) -> str:
    """The output of a command: for a person, without characters that control a terminal."""
    text = output or ""
    return cell_text(text.replace("\r\n", "\n").expandtabs()) if stream.isatty() else writable(text)


def _read(service: RemoteService, sandbox_id: str) -> dict[str, Any] | None:
    found: list[dict[str, Any] | None] = service.get(PATH, id=read_id(sandbox_id))
    return found[0]
