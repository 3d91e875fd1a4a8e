"""The operations in which processes are killed, one file for each kind of subject."""

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
# Including those that take too long for each change.
ALL: Mapping[str, Operation] = {**OPERATIONS, **engine.ALL}
