"""The warm pools, looked after: members that are missing are made, those of no use go."""

from collections.abc import Mapping

from shared.clock import after
from shared.jobs import DeleteSandbox, Job, WarmSandbox
from shared.models import Sandbox
from shared.states import Desired
from shared.store import warm_pool
from shared.store.warm_pool import Pooled
from worker.containers import Listed
from worker.parts import Parts
from worker.sandbox_container import container_name


def tend_pools(parts: Parts) -> None:
    """Look once; the store lets one worker at a time do something about a pool."""
    with parts.database.reading() as session:
        spec_ids = warm_pool.needy(session)
    for spec_id in spec_ids:
        with parts.database.transaction() as session:
            retired = warm_pool.retire_useless(session, spec_id, due_at=after(parts.shared.republish_seconds))
        parts.publisher.publish(*map(_job, retired))
        while (made := _make_member(parts, spec_id)) is not None:
            parts.publisher.publish(_job(made))


def _make_member(parts: Parts, spec_id: str) -> Sandbox | None:
    due_at, boots = after(parts.shared.republish_seconds), parts.settings.warm_boots
    with parts.database.transaction() as session:
        return warm_pool.make_member(session, parts.vault, spec_id, boots=boots, due_at=due_at)


def retire_outdated(parts: Parts, listed: Mapping[str, Listed]) -> None:
    """Let members of this node go whose image is not what its reference stands for any more.

    Args:
        listed: the engine's containers by name, as listed before.
    """
    with parts.database.reading() as session:
        found = {member for member in warm_pool.on_node(session, parts.settings.node) if _container(member) in listed}
    images = {spec_id: parts.engine.find_image(spec_id) for spec_id in {member.spec_id for member in found}}
    outdated = [member.id for member in found if images[member.spec_id] not in (None, listed[_container(member)].image)]
    if outdated:
        with parts.database.transaction() as session:
            retired = warm_pool.retire(session, outdated, due_at=after(parts.shared.republish_seconds))
        parts.publisher.publish(*map(_job, retired))


def _container(member: Pooled) -> str:
    return container_name(member.id)


def _job(member: Sandbox) -> Job:
    kind = DeleteSandbox if member.desired == Desired.DELETED else WarmSandbox
    return kind(member.id, member.node_id)
