"""Heartbeat of the node: sent by its worker, with the state of its engine."""

import structlog

from shared import clock
from shared.nodes import registry as node_registry
from worker.context import WorkerContext
from worker.engine.protocol import EngineError
from worker.sandboxes.container_spec import container_name

log = structlog.get_logger()


def send_heartbeat(context: WorkerContext) -> None:
    """Send one heartbeat. A node without its engine is LOST: its sandboxes wait, and nothing new is placed on it.

    A node that was lost removes the containers of sandboxes that failed over before it is READY again. A worker whose
    clock is wrong sends no heartbeat: it reports the clock.

    Raises:
        Conflict: this worker's engine does not belong to its node's name; the worker must not run.
    """
    if clock.is_wrong():
        _report_clock(context, clock.describe_error())
        return
    settings, problem, engine_id, reaped = context.settings, None, None, set[str]()
    disk_kind, runtimes = None, None
    try:
        engine_id = context.engine.read_id()
        disk_kind, runtimes = context.engine.disk_kind(), context.engine.runtimes()
        reaped = _reap_stale_containers(context, engine_id)
    except EngineError as error:
        log.warning("engine_unavailable", node=settings.node, error=str(error))
        problem = f"the engine does not respond: {error}"
    with context.database.transaction() as session:
        replaced = node_registry.record_heartbeat(
            session,
            settings.node,
            capacity=settings.node_capacity,
            problem=problem,
            closed_reason=context.check_node(),
            impaired_reason=context.find_impairment(),
            disk_kind=disk_kind,
            runtimes=runtimes,
            engine_id=engine_id,
            reaped=reaped,
        )
    if replaced:
        log.warning("engine_replaced", node=settings.node, before=replaced, now=engine_id)


def _report_clock(context: WorkerContext, problem: str) -> None:
    log.error("clock_wrong", node=context.settings.node, problem=problem)
    with context.database.transaction() as session:
        node_registry.report_problem(session, context.settings.node, problem)


def _reap_stale_containers(context: WorkerContext, engine_id: str) -> set[str]:
    """Remove the containers and volumes of sandboxes that moved to other nodes. Returns the sandboxes' ids.

    Every heartbeat does this: a worker that stalled during an action may create such a container later.
    """
    with context.database.reading() as session:
        # A container that is stale on this node's engine may be in use on another engine.
        node_registry.require_engine(session, context.settings.node, engine_id)
        stale = node_registry.stale_containers(session, context.settings.node)
    if stale:
        found = {item.name for item in context.engine.list_containers(context.installation)}
        found.update(context.engine.list_volumes(context.installation), context.engine.list_unlabelled_volumes())
        for name in found.intersection(map(container_name, stale)):
            log.warning("reaping_stale_container", container=name)
            context.engine.remove(name)
    return stale
