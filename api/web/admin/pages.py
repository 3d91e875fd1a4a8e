"""The operators' pages: overview, sandboxes, nodes, users, audit log; and the stream that makes them reload."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, StreamingResponse
from fastapi.sse import EventSourceResponse, format_sse_event

from api.request.context import Context, ContextDep
from api.request.query_params import PageId, RowId
from api.web.admin.access import AdminRoute, CurrentAdmin
from api.web.admin.rendering import render
from api.web.admin.timeline import describe_history
from shared.admin import nodes, overview, sandbox_lists, users
from shared.admin.sandbox_actions import actions_for
from shared.admin.sandbox_lists import MAX_EXAMINED, SandboxFilter
from shared.errors import Invalid
from shared.states import Reason, Status
from shared.users import audit

router = APIRouter(prefix="/admin", route_class=AdminRoute, include_in_schema=False)

PAGE_SIZE = 50
# The shortest and the longest time between two reloads of a page: heartbeats of nodes are not reported as changes.
PAUSE_SECONDS, MAX_SECONDS = 2.0, 10.0

Text = Annotated[str, Query(max_length=256)]


@router.get("")
def show_overview(request: Request, context: ContextDep, admin: CurrentAdmin) -> HTMLResponse:
    """Counts, waiting work, failures, nodes, and warm pools."""
    with context.database.reading() as session:
        return render(
            request,
            "overview.html",
            admin,
            counts=overview.count_sandboxes(session),
            max_counted=overview.MAX_COUNTED,
            backlogs=overview.backlogs(session),
            waiting=overview.waiting_sandboxes(session),
            starts=overview.waiting_starts(session),
            failures=overview.failures(session),
            nodes=nodes.list_nodes(session),
            pools=overview.pools(session),
            statuses=Status,
        )


@router.get("/sandboxes")
def list_sandboxes(
    request: Request,
    context: ContextDep,
    admin: CurrentAdmin,
    status: Text = "",
    node: Text = "",
    user: Text = "",
    reason: Text = "",
    page_id: PageId = None,
) -> HTMLResponse:
    """A page of the sandboxes of all users."""
    filters = {"status": status, "node": node, "user": user, "reason": reason}
    selection = _read_filter(filters)
    with context.database.reading() as session:
        page = sandbox_lists.search(session, selection, page_id, PAGE_SIZE)
    return render(
        request,
        "sandboxes.html",
        admin,
        page=page,
        filters={name: text for name, text in filters.items() if text},
        statuses=list(Status),
        reasons=list(Reason),
        examined=MAX_EXAMINED,
    )


@router.get("/sandboxes/{sandbox_id}")
def show_sandbox(request: Request, context: ContextDep, admin: CurrentAdmin, sandbox_id: RowId) -> HTMLResponse:
    """One sandbox with its history, also a deleted one."""
    with context.database.reading() as session:
        found = sandbox_lists.read_history(session, sandbox_id)
    return render(
        request,
        "sandbox.html",
        admin,
        found=found,
        sandbox=found.listed.sandbox,
        history=describe_history(found.transitions),
        actions=actions_for(found.listed.sandbox),
    )


@router.get("/nodes")
def list_nodes(request: Request, context: ContextDep, admin: CurrentAdmin) -> HTMLResponse:
    """All nodes, with their capacity, heartbeats and problems."""
    with context.database.reading() as session:
        return render(request, "nodes.html", admin, nodes=nodes.list_nodes(session))


@router.get("/users")
def list_users(request: Request, context: ContextDep, admin: CurrentAdmin, page_id: PageId = None) -> HTMLResponse:
    """A page of all users."""
    with context.database.reading() as session:
        return render(request, "users.html", admin, page=users.search_users(session, page_id, PAGE_SIZE))


@router.get("/user")
def show_user(request: Request, context: ContextDep, admin: CurrentAdmin, name: Text) -> HTMLResponse:
    """One user, with the user's keys."""
    with context.database.reading() as session:
        found, keys = users.read_user(session, name)
        return render(request, "user.html", admin, found=found, keys=keys)


@router.get("/audit")
def list_actions(request: Request, context: ContextDep, admin: CurrentAdmin, page_id: PageId = None) -> HTMLResponse:
    """A page of operators' actions."""
    with context.database.reading() as session:
        return render(request, "audit.html", admin, page=audit.search(session, page_id, PAGE_SIZE))


async def hold_stream(context: ContextDep, admin: CurrentAdmin) -> AsyncIterator[None]:
    """Count the operator's stream until its response has ended."""
    with context.limits.streams.hold(admin.id):
        yield


@router.get("/changes", response_class=StreamingResponse, dependencies=[Depends(hold_stream)])
async def follow_changes(context: ContextDep) -> EventSourceResponse:
    """A stream of server-sent events without data, each of which makes a page reload."""
    return EventSourceResponse(_write(context), headers={"X-Accel-Buffering": "no"})


async def _write(context: Context) -> AsyncIterator[bytes]:
    changes = context.streams.follow_all(PAUSE_SECONDS, MAX_SECONDS)
    async with aclosing(changes):
        yield format_sse_event(comment="follows")
        async for _ in changes:
            yield format_sse_event(event="change", data_str="{}")


def _read_filter(filters: dict[str, str]) -> SandboxFilter:
    status, node, user, reason = (text.strip() or None for text in filters.values())
    if status is not None and status not in list(Status):
        raise Invalid(f"no status is named {status[:80]!r}")
    return SandboxFilter(Status(status) if status else None, node, user, reason)
