"""The warm pools, looked after: members that are missing are made, those of no use go."""

from collections.abc import Mapping

from shared.clock import after
from shared.models import Sandbox
from shared.queue.jobs import DeleteSandbox, Job, WarmSandbox
from shared.states import Desired
from shared.warm_pool import pool as warm_pool
from shared.warm_pool.pool import Pooled
from worker.context import WorkerContext
from worker.engine.protocol import ContainerSummary
from worker.sandboxes.container_spec import container_name


def reconcile_pools(context: WorkerContext) -> None:
    """Look once; the store lets one worker at a time do something about a pool."""
    with context.database.reading() as session:
        spec_ids = warm_pool.pools_to_reconcile(session)
    for spec_id in spec_ids:
        with context.database.transaction() as session:
            retired = warm_pool.retire_useless(session, spec_id, due_at=after(context.shared.republish_seconds))
        context.publisher.publish(*map(_job, retired))
        while (made := _make_warm_sandbox(context, spec_id)) is not None:
            context.publisher.publish(_job(made))


def _make_warm_sandbox(context: WorkerContext, spec_id: str) -> Sandbox | None:
    due_at, boots = after(context.shared.republish_seconds), context.settings.warm_boot_concurrency
    with context.database.transaction() as session:
        return warm_pool.make_warm_sandbox(session, context.vault, spec_id, boots=boots, due_at=due_at)


def retire_outdated(context: WorkerContext, listed: Mapping[str, ContainerSummary]) -> None:
    """Let members of this node go whose image is not what its reference stands for any more.

    Args:
        listed: the engine's containers by name, as listed before.
    """
    with context.database.reading() as session:
        found = {member for member in warm_pool.on_node(session, context.settings.node) if _container(member) in listed}
    images = {spec_id: context.engine.find_image(spec_id) for spec_id in {member.spec_id for member in found}}
    outdated = [member.id for member in found if images[member.spec_id] not in (None, listed[_container(member)].image)]
    if outdated:
        with context.database.transaction() as session:
            retired = warm_pool.retire(session, outdated, due_at=after(context.shared.republish_seconds))
        context.publisher.publish(*map(_job, retired))


def _container(member: Pooled) -> str:
    return container_name(member.id)


def _job(member: Sandbox) -> Job:
    kind = DeleteSandbox if member.desired == Desired.DELETED else WarmSandbox
    return kind(member.id, member.node_id)
