"""The node's sign of life: its worker beats, and says whether its engine answers."""

import structlog

from shared.store import nodes
from worker.containers import EngineError
from worker.parts import Parts
from worker.sandbox_container import container_name

log = structlog.get_logger()


def beat(parts: Parts) -> None:
    """Beat once. Without its engine the node is LOST: what it has waits, and nothing new is placed on it.

    A node that was lost is rid of what lives elsewhere by now before it says that it is back.
    """
    here, problem, reaped = parts.settings, None, set[str]()
    try:
        parts.engine.ping()
        reaped = _reap_leftovers(parts)
    except EngineError as error:
        log.warning("engine_unavailable", node=here.node, error=str(error))
        problem = f"the engine does not answer: {error}"
    with parts.database.transaction() as session:
        nodes.beat(session, here.node, capacity=here.node_capacity, problem=problem, reaped=reaped)


def _reap_leftovers(parts: Parts) -> set[str]:
    """Remove what this engine has of sandboxes that moved away; their ids.

    With every beat: a worker that stood still in the middle of a step may make such a container even later.
    """
    with parts.database.reading() as session:
        left = nodes.leftovers(session, parts.settings.node)
    if left:
        found = {item.name for item in parts.engine.list_containers(parts.installation)}
        found.update(parts.engine.list_volumes(parts.installation))
        for name in found.intersection(map(container_name, left)):
            log.warning("reaping_leftover", container=name)
            parts.engine.remove(name)
    return left
