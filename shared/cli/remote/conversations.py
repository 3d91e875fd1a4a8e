"""`agent-workspace conversations`: the commands for the caller's conversations."""

import sys
import time
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from shared.cli.output import cell_text, print_compact_json, print_details, print_table, read_fields, showing
from shared.cli.remote.event_lines import event_line
from shared.cli.remote.event_times import find_cursor, time_of
from shared.cli.remote.service import Missing, RemoteService, failure, opened, read_id, remote, without_key
from shared.cli.remote.waiting import Timeout, Wait, wait_for
from shared.errors import Conflict, WorkspaceError
from shared.states import Stage

conversations = typer.Typer(help="Start and follow conversations.", no_args_is_help=True)

PATH = "/api/v1/app-conversations"
TASKS = f"{PATH}/start-tasks"
COLUMNS = ("id", "title", "sandbox_status", "execution_status", "updated_at")
DETAILS = (
    *COLUMNS,
    "created_at",
    "sandbox_id",
    "selected_repository",
    "selected_branch",
    "llm_model",
    "execution_reason",
    "execution_detail",
)
TASK = ("status", "reason", "detail", "sandbox_id")
FAILED = ("error", "stuck")
# An agent whose run was interrupted is paused.
ENDED = ("finished", "paused", *FAILED)
# Without a running sandbox, a conversation has no execution status.
AT_REST = ("PAUSED", "ERROR", "MISSING")
SECONDS = 600.0
# Max time of a cancel request. The service responds as soon as a worker has ended the start.
CANCEL_SECONDS = 30
FOLLOW_SECONDS = 1.0
# Polls without events before a final status counts: after a new message, the agent still has its previous status.
QUIET_POLLS = 4
Id = Annotated[str, typer.Argument(metavar="ID", help="The conversation's id.")]


@conversations.command("list")
@showing
@remote
def list_conversations(
    title: Annotated[str | None, typer.Option(help="List only conversations whose title contains this text.")] = None,
    sandbox: Annotated[str | None, typer.Option(help="List only conversations in this sandbox.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Max number, newest first.")] = 100,
) -> None:
    """List conversations, newest first."""
    with opened() as service:
        found = service.list_all(f"{PATH}/search", limit, title__contains=title, sandbox_id__eq=sandbox)
    header = ("id", "title", "sandbox", "agent", "updated")
    rows = [read_fields(one, COLUMNS) for one in found]
    print_table(header, rows, objects=[without_key(one) for one in found])


@conversations.command("start")
@remote
def start_conversation(
    message: Annotated[
        str | None, typer.Option("--message", "-m", help="The first message; `-` is standard input.")
    ] = None,
    repo: Annotated[str | None, typer.Option(help="Repository to clone, such as owner/name.")] = None,
    branch: Annotated[str | None, typer.Option(help="Branch of the repository.")] = None,
    sandbox: Annotated[str | None, typer.Option(help="Sandbox to use. Default: chosen by your settings.")] = None,
    title: Annotated[str | None, typer.Option(help="Title. Default: the agent server generates one.")] = None,
    wait: Wait = True,
    timeout: Timeout = SECONDS,
) -> None:
    """Start a conversation and print its id. With `--wait`, the default, return when the agent has the message."""
    conversation_id = uuid.uuid4().hex
    request = {
        "conversation_id": conversation_id,
        "initial_message": message and _message(_read_text(message)),
        "selected_repository": repo,
        "selected_branch": branch,
        "sandbox_id": sandbox,
        "title": title,
    }
    with opened() as service:
        task = service.post(PATH, {name: value for name, value in request.items() if value is not None})
        typer.echo(conversation_id)
        if wait:
            wait_for(lambda: _check_start(service, task["id"]), timeout, "the start")


@conversations.command("show")
@showing
@remote
def show_conversation(conversation_id: Id) -> None:
    """Show a conversation, or the progress of its start."""
    with opened() as service:
        try:
            shown = without_key(service.get(f"{PATH}/{read_id(conversation_id)}"))
        except Missing:
            task = _find_task(service, conversation_id)
            print_details({"id": conversation_id, **dict(zip(TASK, read_fields(task, TASK), strict=True))}, task)
            return
    details = dict(zip(DETAILS, read_fields(shown, DETAILS), strict=True))
    print_details({name: value for name, value in details.items() if value is not None}, shown)


@conversations.command("send")
@remote
def send_message(
    conversation_id: Id, text: Annotated[str, typer.Argument(help="The message; `-` is standard input.")]
) -> None:
    """Send a message. The agent receives it exactly once, as soon as it is able to, and runs."""
    path = f"/api/v1/conversations/{read_id(conversation_id)}/pending-messages"
    with opened() as service:
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        service.request("POST", path, body=_message(_read_text(text)), headers=headers)


@conversations.command("events")
@showing
@remote
def show_events(
    conversation_id: Id,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new events until the agent's run ends.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Number of past events.")] = 100,
) -> None:
    """Print events, oldest first. With `--json`, one JSON object per line. Exit with 1 if a followed agent fails."""
    with opened() as service:
        hex_id = read_id(conversation_id)
        path = f"/api/v1/conversation/{hex_id}/events/search"
        past = service.list_all(path, limit, sort_order="TIMESTAMP_DESC")
        if not past:
            service.get(f"{PATH}/{hex_id}")  # an unknown conversation has no events, either
        for event in reversed(past):
            _print_event(event)
        if follow:
            _report_end(_follow(service, hex_id, past))


@conversations.command("cancel")
@remote
def cancel(conversation_id: Id) -> None:
    """Stop the agent, or cancel a start in progress. The conversation is kept and accepts new messages."""
    with opened() as service:
        hex_id = read_id(conversation_id)
        try:
            conversation = service.get(f"{PATH}/{hex_id}")
        except Missing:
            service.post(f"{TASKS}/{_find_task(service, hex_id)['id']}/cancel", wait=CANCEL_SECONDS)
            typer.echo("the start is cancelled")
            return
        if conversation["sandbox_status"] != "RUNNING":
            raise Conflict(f"its sandbox is {conversation['sandbox_status']}: no agent runs in it")
        agent = f"/sandbox/{conversation['sandbox_id']}/api/conversations/{uuid.UUID(hex_id)}"
        service.post(f"{agent}/interrupt")
        typer.echo("the agent is interrupted")


@conversations.command("download")
@remote
def download(
    conversation_id: Id,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File; `-` is standard output. Default: conversation_ID.zip."),
    ] = None,
) -> None:
    """Download a zip archive of a conversation and its events."""
    hex_id = read_id(conversation_id)
    file = output or Path(f"conversation_{hex_id}.zip")
    with opened() as service, service.stream("GET", f"{PATH}/{hex_id}/download") as response:
        if str(file) == "-":
            for part in response.iter_bytes():
                sys.stdout.buffer.write(part)
            return
        partial = file.with_name(f".{file.name}.partial")
        try:
            with partial.open("wb") as target:
                target.writelines(response.iter_bytes())
            partial.replace(file)
        finally:
            partial.unlink(missing_ok=True)  # after an interruption, or on a full disk
    typer.echo(str(file))


def _check_start(service: RemoteService, task_id: str) -> bool | None:
    task = service.get(f"{TASKS}/{task_id}")
    if task["status"] == "ERROR":
        raise failure("the start failed", task)
    return task["status"] == "READY" or None


def _find_task(service: RemoteService, conversation_id: str) -> dict[str, Any]:
    """The start task of a conversation that does not exist yet.

    The stages are searched in their order, so that a task that advances meanwhile is found. Tasks in READY are as many
    as conversations, and only these can be searched by the conversation.
    """
    wanted = read_id(conversation_id)
    for stage in Stage:
        ready = wanted if stage == Stage.READY else None
        for task in service.read_items(f"{TASKS}/search", status__eq=stage, conversation_id__eq=ready):
            if (task["request"].get("conversation_id") or "").replace("-", "") == wanted:
                return task
    raise Missing(f"no conversation with id {wanted!r}")


def _follow(service: RemoteService, hex_id: str, past: list[dict[str, Any]]) -> dict[str, Any]:
    """Print new events until the agent's run has ended, and return the conversation as it is then."""
    seen, quiet = past, 0
    while True:
        # Read before the events, so that these include everything that the agent did until it ended.
        conversation: dict[str, Any] = service.get(f"{PATH}/{hex_id}")
        quiet += 1
        since = find_cursor(seen)
        # The events that the next request returns again.
        seen = [event for event in seen if since is None or time_of(event) >= since]
        for event in _newer(service, hex_id, seen, since):
            _print_event(event)
            seen.append(event)
            quiet = 0
        if quiet >= QUIET_POLLS and _has_ended(conversation):
            return conversation
        time.sleep(FOLLOW_SECONDS)


def _has_ended(conversation: dict[str, Any]) -> bool:
    return conversation["execution_status"] in ENDED or conversation.get("sandbox_status") in AT_REST


def _report_end(conversation: dict[str, Any]) -> None:
    """Say why the run ended, unless the agent has finished.

    Raises:
        WorkspaceError: the agent has failed.
    """
    status, sandbox = conversation["execution_status"], conversation.get("sandbox_status")
    if status in FAILED:
        raise WorkspaceError(_failure(conversation))
    if sandbox in AT_REST:
        typer.echo(f"the sandbox is {sandbox}: no agent runs in it", err=True)
    elif status != "finished":
        typer.echo("the agent was stopped before it had finished", err=True)


def _newer(
    service: RemoteService, hex_id: str, seen: list[dict[str, Any]], since: datetime | None
) -> Iterator[dict[str, Any]]:
    known = {event["id"] for event in seen}
    path = f"/api/v1/conversation/{hex_id}/events/search"
    events = service.read_items(path, timestamp__gte=since and since.isoformat())
    yield from (event for event in events if event["id"] not in known)


def _failure(conversation: dict[str, Any]) -> str:
    reason, detail = conversation.get("execution_reason"), conversation.get("execution_detail")
    return f"the agent is in {conversation['execution_status']}, {reason or 'without a reason'}: {detail or ''}"


def _print_event(event: dict[str, Any]) -> None:
    if not print_compact_json(event, event.get("id")) and (line := event_line(event)):
        typer.echo(cell_text(line))


def _message(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def _read_text(text: str) -> str:
    return sys.stdin.read() if text == "-" else text
