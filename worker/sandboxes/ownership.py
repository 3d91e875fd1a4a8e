"""Checks that a container belongs to its row: a restored database may list a used container as warm or idle."""

from shared.agent_server.errors import DoorUnavailable, WrongServer
from shared.crypto import MissingKey
from shared.models import Sandbox
from worker.agent_server.client import AgentServer
from worker.context import WorkerContext
from worker.engine.docker_engine import OWNER_LABEL
from worker.engine.protocol import ContainerState, ContainerStatus, EngineRefused
from worker.sandboxes.container_spec import container_name


def belongs_to_another(context: WorkerContext, sandbox: Sandbox, observed: ContainerStatus, url: str | None) -> bool:
    """Whether the container or volume under a sandbox's name holds, or may hold, another sandbox's files.

    The agent server is queried first. If it does not respond, the engine is queried for new files.

    Args:
        sandbox: a row whose container was created for the warm pool, and has not accepted its owner's key yet.
        url: the URL of its agent server; None: it has none.
    """
    match observed.state:
        case ContainerState.ABSENT:
            # A volume alone does not show whether it was used. A claimed sandbox's container shows it before it starts.
            return is_pools_volume(observed) and sandbox.owner_id is None and sandbox.ready_at is not None
        case ContainerState.CREATED:
            return sandbox.owner_id is not None and _has_new_files(context, sandbox)
        case ContainerState.REMOVING:
            return False
    is_used = _probe(context, sandbox, url) if url is not None and observed.state == ContainerState.RUNNING else None
    return _has_new_files(context, sandbox) if is_used is None else is_used


def is_pools_volume(observed: ContainerStatus) -> bool:
    """Whether a volume without a container was created for the warm pool. An owner's volume names the owner."""
    return observed.labels.get(OWNER_LABEL) == ""


def _probe(context: WorkerContext, sandbox: Sandbox, url: str) -> bool | None:
    """Whether the agent server has another row's keys; None: it does not respond, or this worker can't ask it."""
    try:
        is_used = _probe_server(context.agent_server_at(url, sandbox))
    except (DoorUnavailable, MissingKey):
        return None
    return None if is_used and context.network.find_route_problem() else is_used


def _probe_server(server: AgentServer) -> bool | None:
    awaits_init = server.is_dormant()
    if awaits_init is None:
        return None
    if awaits_init:
        return False
    # A server without support for deferred init has no keys. A server booted for its owner has its keys from the start.
    is_open = server.is_open()
    return None if is_open is None else not is_open and not _takes_row_key(server)


def _takes_row_key(server: AgentServer) -> bool:
    """Whether the server accepts the row's key: a worker may have sent it, and died before it could record that."""
    try:
        return server.accepts_key()
    except WrongServer:
        return False


def _has_new_files(context: WorkerContext, sandbox: Sandbox) -> bool:
    try:
        return context.engine.has_new_files(container_name(sandbox.id))
    except EngineRefused:
        return True  # the quarantine removes it in an hour
