"""The node's sign of life: its worker beats, and says whether its engine answers."""

import structlog

from shared import clock
from shared.store import nodes
from worker.containers import EngineError
from worker.parts import Parts
from worker.sandbox_container import container_name

log = structlog.get_logger()


def beat(parts: Parts) -> None:
    """Beat once. Without its engine the node is LOST: what it has waits, and nothing new is placed on it.

    A node that was lost is rid of what lives elsewhere by now before it says that it is back. A worker whose clock is
    wrong does not beat: it says so.

    Raises:
        Conflict: this worker's engine and its node's name don't belong together; it must not work.
    """
    if clock.is_wrong():
        _report_clock(parts, clock.describe_error())
        return
    here, problem, engine_id, reaped = parts.settings, None, None, set[str]()
    try:
        engine_id = parts.engine.read_id()
        reaped = _reap_leftovers(parts, engine_id)
    except EngineError as error:
        log.warning("engine_unavailable", node=here.node, error=str(error))
        problem = f"the engine does not answer: {error}"
    with parts.database.transaction() as session:
        replaced = nodes.beat(
            session, here.node, capacity=here.node_capacity, problem=problem, engine_id=engine_id, reaped=reaped
        )
    if replaced:
        log.warning("engine_replaced", node=here.node, before=replaced, now=engine_id)


def _report_clock(parts: Parts, problem: str) -> None:
    log.error("clock_wrong", node=parts.settings.node, problem=problem)
    with parts.database.transaction() as session:
        nodes.report_problem(session, parts.settings.node, problem)


def _reap_leftovers(parts: Parts, engine_id: str) -> set[str]:
    """Remove what this engine has of sandboxes that moved away; their ids.

    With every beat: a worker that stood still in the middle of a step may make such a container even later.
    """
    with parts.database.reading() as session:
        nodes.require_engine(session, parts.settings.node, engine_id)  # what is a leftover here may live there
        left = nodes.leftovers(session, parts.settings.node)
    if left:
        found = {item.name for item in parts.engine.list_containers(parts.installation)}
        found.update(parts.engine.list_volumes(parts.installation), parts.engine.list_unlabelled_volumes())
        for name in found.intersection(map(container_name, left)):
            log.warning("reaping_leftover", container=name)
            parts.engine.remove(name)
    return left
