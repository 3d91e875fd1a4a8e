"""Whether a container is what its row says: a store that went back in time may take a used one for spare or idle."""

from shared.models import Sandbox
from shared.states import Reason, Status
from worker.agent_server.client import AgentServer
from worker.agent_server.errors import WrongServer
from worker.context import WorkerContext
from worker.engine.docker_engine import OWNER_LABEL
from worker.engine.protocol import ContainerState, ContainerStatus, EngineRefused
from worker.sandboxes.container_spec import container_name

UNTOUCHED = (ContainerState.CREATED, ContainerState.REMOVING)


def is_in_doubt(sandbox: Sandbox) -> bool:
    """Whether its container was made for the pool, and has not answered to the key of the row's owner yet."""
    return sandbox.boot_key is not None and (sandbox.owner_id is None or sandbox.ready_at is None)


def is_anothers(context: WorkerContext, sandbox: Sandbox, observed: ContainerStatus, url: str | None) -> bool:
    """Whether what is observed under a sandbox's name holds, or may hold, another sandbox's files.

    The agent server is asked first. Where it does not answer, the engine says whether there are files.

    Args:
        sandbox: one that `is_in_doubt`.
        url: where its agent server listens; None: nowhere.
    """
    if observed.state in UNTOUCHED:
        return False
    if observed.state == ContainerState.ABSENT:
        # The volume alone does not say if it was used. One that a failed attempt left says by its label for whom.
        return observed.labels.get(OWNER_LABEL) == "" and not _is_being_made(sandbox)
    told = _ask(context, sandbox, url) if url is not None and observed.state == ContainerState.RUNNING else None
    return _has_new_files(context, sandbox) if told is None else told


def is_in_use(sandbox: Sandbox, observed: ContainerStatus) -> bool:
    """Whether a container is alive whose row is to go because it was stopped so long ago."""
    alive = {ContainerState.RUNNING, ContainerState.FROZEN}
    if sandbox.status == Status.ERROR:
        alive = {ContainerState.RUNNING}
    return sandbox.wish_reason == Reason.IDLE_DELETED and observed.state in alive


def _is_being_made(sandbox: Sandbox) -> bool:
    return sandbox.owner_id is None and sandbox.ready_at is None


def _ask(context: WorkerContext, sandbox: Sandbox, url: str) -> bool | None:
    """Whether its agent server has another's keys; None: it does not say."""
    server = context.agent_server(sandbox, url)
    dormant = server.is_dormant() if server is not None else None
    if server is None or dormant is None:
        return None
    if dormant:
        return False
    # One that knows no deferred init has no keys at all. One that boots for its owner has them from the first moment.
    is_open = server.is_open()
    return None if is_open is None else not is_open and not _takes_our_key(server)


def _takes_our_key(server: AgentServer) -> bool:
    """Whether a worker has given it the key in the row, and died before it could say so."""
    try:
        return server.answers()
    except WrongServer:
        return False


def _has_new_files(context: WorkerContext, sandbox: Sandbox) -> bool:
    try:
        return context.engine.has_new_files(container_name(sandbox.id))
    except EngineRefused:
        return True  # it is removed in an hour instead of now
