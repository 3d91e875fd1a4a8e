"""The logs of the in-memory engine's containers, and the kept parts of them."""

from shared.container_logs import kept_logs
from tests.fakes.container import FakeContainer
from tests.fakes.engine import FakeEngine
from worker.context import WorkerContext
from worker.sandboxes.container_spec import container_name


def container_of(engine: FakeEngine, sandbox_id: str) -> FakeContainer:
    return engine.containers[container_name(sandbox_id)]


def logs_of(context: WorkerContext, sandbox_id: str) -> list[tuple[list[str], str | None]]:
    """The kept texts without their times, and the causes."""
    with context.database.reading() as session:
        kept = kept_logs.list_kept(session, sandbox_id)
    return [([line.partition(" ")[2] for line in log.text.splitlines()], log.cause) for log in kept]


def reads(engine: FakeEngine) -> int:
    return sum(verb == "read_log" for verb, _ in engine.calls)
