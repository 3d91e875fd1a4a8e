"""Engine events: a change behind our back has its row looked at; an event itself is never believed."""

import structlog

from shared import failpoints
from worker.looks import look
from worker.parts import Parts
from worker.resync import resync
from worker.sandbox_container import NAME_PREFIX

log = structlog.get_logger()


def follow_events(parts: Parts) -> None:
    """Subscribe, compare everything once, then follow, until the stream ends.

    Raises:
        EngineUnavailable: the engine went away; call again.
    """
    changes = parts.engine.follow(parts.installation)
    resync(parts)
    log.info("following_events", node=parts.settings.node)
    for name in changes:
        failpoints.begin("events")
        look(parts, name.removeprefix(NAME_PREFIX))
