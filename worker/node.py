"""The node's sign of life: its worker beats, and says whether its engine answers."""

import structlog

from shared.store import nodes
from worker.containers import EngineError
from worker.parts import Parts

log = structlog.get_logger()


def beat(parts: Parts) -> None:
    """Beat once. Without its engine the node is LOST: what it has waits, and nothing new is placed on it."""
    problem = _problem(parts)
    with parts.database.transaction() as session:
        nodes.beat(session, parts.settings.node, capacity=parts.settings.node_capacity, problem=problem)


def _problem(parts: Parts) -> str | None:
    try:
        parts.engine.ping()
    except EngineError as error:
        log.warning("engine_unavailable", node=parts.settings.node, error=str(error))
        return f"the engine does not answer: {error}"
    return None
