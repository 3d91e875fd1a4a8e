"""The operations that processes are killed in: whose points are their own, what they do, and to what. A file a noun."""

from collections.abc import Mapping

from tests.drills.faults.operation import Operation
from tests.drills.faults.operations import (
    agent,
    conversation,
    drift,
    engine,
    message,
    node,
    pool,
    report,
    sandbox,
    settings,
    traffic,
)

OPERATIONS: Mapping[str, Operation] = {
    **sandbox.OPERATIONS,
    **pool.OPERATIONS,
    **traffic.OPERATIONS,
    **conversation.OPERATIONS,
    **message.OPERATIONS,
    **agent.OPERATIONS,
    **report.OPERATIONS,
    **settings.OPERATIONS,
    **node.OPERATIONS,
    **drift.OPERATIONS,
    **engine.OPERATIONS,
}
# With those that take too long for each change.
ALL: Mapping[str, Operation] = {**OPERATIONS, **engine.ALL}
