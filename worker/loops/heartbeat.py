"""Heartbeat of the node: sent by its worker, with the state of its engine."""

import structlog

from shared import clock
from shared.db.database import Session
from shared.nodes import placement
from shared.nodes import registry as node_registry
from worker.context import WorkerContext
from worker.engine.protocol import EngineError
from worker.loops.stale_containers import list_names, reap_stale

log = structlog.get_logger()


def send_heartbeat(context: WorkerContext) -> None:
    """Send one heartbeat. A node without its engine is LOST: its sandboxes wait, and nothing new is placed on it.

    A node that was lost removes the containers of sandboxes that failed over before it is READY again. A container that
    the engine does not remove does not keep the node lost: all of the node's sandboxes would be in ERROR because of it.

    A worker whose clock is wrong sends no heartbeat, but reports the clock.

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
        reaped = _reap_if_lost(context, engine_id)
    except EngineError as error:
        log.warning("engine_unavailable", node=settings.node, error=str(error))
        problem = f"the engine does not respond: {error}"
    # No lock of the database waits for a check.
    closed, impaired = context.check_node(), context.find_impairment()
    with context.database.transaction() as session:
        if problem and _belongs_to_other_worker(context, session):
            return
        replaced = node_registry.record_heartbeat(
            session,
            settings.node,
            capacity=settings.node_capacity,
            problem=problem,
            closed_reason=closed,
            impaired_reason=impaired,
            disk_kind=disk_kind,
            runtimes=runtimes,
            engine_id=engine_id,
            reaped=reaped,
        )
    if engine_id is not None:
        context.engine_checked.set()
    if replaced:
        log.warning("engine_replaced", node=settings.node, before=replaced, now=engine_id)


def _belongs_to_other_worker(context: WorkerContext, session: Session) -> bool:
    """Whether another worker sends heartbeats for the node, while this one has never reached the node's engine.

    The address of the engine may be wrong in this worker's settings: the node has no problem then.
    """
    return not context.engine_checked.is_set() and node_registry.has_heartbeat(session, context.settings.node)


def _report_clock(context: WorkerContext, problem: str) -> None:
    log.error("clock_wrong", node=context.settings.node, problem=problem)
    with context.database.transaction() as session:
        node_registry.report_problem(session, context.settings.node, problem)


def _reap_if_lost(context: WorkerContext, engine_id: str) -> set[str]:
    """Reap the stale containers if this node is lost. Returns the ids of the sandboxes that moved away until then.

    If the node is not lost, the resync reaps them: a slow list must not delay a heartbeat.
    """
    with context.database.reading() as session:
        # A container that is stale on this node's engine may be in use on another engine.
        node_registry.require_engine(session, context.settings.node, engine_id)
        if not placement.is_lost(session, context.settings.node):
            return set()
    try:
        listed = list_names(context)
    except EngineError as error:
        log.warning("stale_containers_not_listed", node=context.settings.node, error=str(error))
        listed = set()
    return reap_stale(context, listed)
