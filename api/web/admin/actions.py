"""The forms of the operators' pages. Each changes the store through the same functions as the API and the CLI."""

from enum import StrEnum

from fastapi import APIRouter, Depends
from fastapi.responses import RedirectResponse, Response

from api.request.context import Context, ContextDep, JobQueueDep
from api.request.form import Form
from api.request.query_params import RowId
from api.web.admin.access import AdminRoute, CurrentAdmin, require_form_token
from shared.admin import nodes, sandbox_actions
from shared.admin.sandbox_actions import SandboxAction
from shared.users.audit import Actor

router = APIRouter(
    prefix="/admin", route_class=AdminRoute, include_in_schema=False, dependencies=[Depends(require_form_token)]
)


class NodeAction(StrEnum):
    """An operator's action on a node."""

    CORDON = "cordon"
    UNCORDON = "uncordon"
    DRAIN = "drain"


@router.post("/sandboxes/{sandbox_id}/{action}")
def act_on_sandbox(
    context: ContextDep, admin: CurrentAdmin, queue: JobQueueDep, form: Form, sandbox_id: RowId, action: SandboxAction
) -> Response:
    """Retry, pause or delete a sandbox of any user."""
    with context.database.transaction() as session:
        seen = form.get("generation", "")
        job = sandbox_actions.act(session, sandbox_id, action, admin.actor, due_at=queue.due_at, seen=seen)
    queue.enqueue(job)
    return RedirectResponse(f"/admin/sandboxes/{sandbox_id}", 303)


@router.post("/nodes/{node_id:path}/{action}")
def act_on_node(context: ContextDep, admin: CurrentAdmin, node_id: str, action: NodeAction) -> Response:
    """Cordon, uncordon or drain a node, whose name may contain `/`. Its worker stops the sandboxes after a drain."""
    _act_on_node(context, node_id, action, admin.actor)
    return RedirectResponse("/admin/nodes", 303)


def _act_on_node(context: Context, node_id: str, action: NodeAction, actor: Actor) -> None:
    if action == NodeAction.DRAIN:
        nodes.drain_node(context.database.transaction, node_id, actor)
        return
    with context.database.transaction() as session:
        change = nodes.cordon_node if action == NodeAction.CORDON else nodes.uncordon_node
        change(session, node_id, actor)
