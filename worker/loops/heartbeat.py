"""The node's sign of life: its worker beats, and says whether its engine answers."""

import structlog

from shared import clock
from shared.nodes import registry as node_registry
from worker.context import WorkerContext
from worker.engine.protocol import EngineError
from worker.sandboxes.container_spec import container_name

log = structlog.get_logger()


def beat(context: WorkerContext) -> None:
    """Beat once. Without its engine the node is LOST: what it has waits, and nothing new is placed on it.

    A node that was lost is rid of what lives elsewhere by now before it says that it is back. A worker whose clock is
    wrong does not beat: it says so.

    Raises:
        Conflict: this worker's engine and its node's name don't belong together; it must not work.
    """
    if clock.is_wrong():
        _report_clock(context, clock.describe_error())
        return
    here, problem, engine_id, reaped = context.settings, None, None, set[str]()
    try:
        engine_id = context.engine.read_id()
        reaped = _reap_stale_containers(context, engine_id)
    except EngineError as error:
        log.warning("engine_unavailable", node=here.node, error=str(error))
        problem = f"the engine does not answer: {error}"
    with context.database.transaction() as session:
        replaced = node_registry.beat(
            session, here.node, capacity=here.node_capacity, problem=problem, engine_id=engine_id, reaped=reaped
        )
    if replaced:
        log.warning("engine_replaced", node=here.node, before=replaced, now=engine_id)


def _report_clock(context: WorkerContext, problem: str) -> None:
    log.error("clock_wrong", node=context.settings.node, problem=problem)
    with context.database.transaction() as session:
        node_registry.report_problem(session, context.settings.node, problem)


def _reap_stale_containers(context: WorkerContext, engine_id: str) -> set[str]:
    """Remove what this engine has of sandboxes that moved away; their ids.

    With every beat: a worker that stood still in the middle of a step may make such a container even later.
    """
    with context.database.reading() as session:
        node_registry.require_engine(
            session, context.settings.node, engine_id
        )  # what is a leftover here may live there
        left = node_registry.leftovers(session, context.settings.node)
    if left:
        found = {item.name for item in context.engine.list_containers(context.installation)}
        found.update(context.engine.list_volumes(context.installation), context.engine.list_unlabelled_volumes())
        for name in found.intersection(map(container_name, left)):
            log.warning("reaping_leftover", container=name)
            context.engine.remove(name)
    return left
