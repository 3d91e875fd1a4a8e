"""Engine events: an event triggers a status check of the sandbox; the event itself is never trusted."""

import structlog

from shared.conversations import queries as conversation_queries
from shared.observability import failpoints
from worker.context import WorkerContext
from worker.engine.protocol import EngineError
from worker.loops.recheck import recheck
from worker.loops.resync import resync
from worker.sandboxes.container_spec import NAME_PREFIX

log = structlog.get_logger()


def follow_events(context: WorkerContext) -> None:
    """Subscribe, resync, then check each sandbox that an event names, until the stream ends.

    Sandboxes in which agents run are checked first: if a container was restarted before the subscription, its agent has
    ended, which the engine's list of containers does not show.

    Raises:
        EngineUnavailable: the engine went away; the caller retries.
    """
    changes = context.engine.follow(context.installation)
    try:
        resync(context)
    except EngineError as error:  # a slow list: the next resync follows soon
        log.warning("not_compared", node=context.settings.node, error=str(error))
    with context.database.reading() as session:
        with_runs = conversation_queries.list_sandboxes_with_runs(session, context.settings.node)
    for sandbox_id in with_runs:
        recheck(context, sandbox_id)
    log.info("following_events", node=context.settings.node)
    for name in changes:
        failpoints.begin("events")
        recheck(context, name.removeprefix(NAME_PREFIX))
