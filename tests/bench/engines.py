"""A list while no engine responds, compared with the same list while one does. The API reads lists from the store."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from sqlmodel import select

from shared.models import Node, Sandbox
from shared.states import NodeStatus
from tests.bench.figures import Figure, Runs
from tests.bench.load import make_request, time_requests
from tests.bench.site import running_store
from tests.factories import make_conversation
from tests.services.client import Client
from tests.services.deployment import Deployment, deployed
from tests.services.engine import TINY_IMAGE
from tests.services.private_engine import PrivateEngine, running_private_engine
from tests.services.valkey import running_valkey
from tests.waiting import eventually

LIST = "/api/v1/app-conversations/search?limit=50"
SANDBOXES, CONVERSATIONS = 5, 50
SAMPLES = 200


def stopped_engine(database: str, runs: int) -> Figure:
    """The list of one client's conversations, with running sandboxes and then with a stopped engine."""
    with ExitStack() as stack:
        engine = stack.enter_context(running_private_engine([TINY_IMAGE], in_memory=False))
        stack.callback(engine.clear)
        stack.callback(engine.start)
        service = stack.enter_context(_service(database, engine))
        client = stack.enter_context(service.user("alice"))
        _fill(service, client)
        answered = _send(service, client, runs)
        engine.stop()
        eventually(lambda: _node(service).status == NodeStatus.LOST, deadline_seconds=60)
        silent = _send(service, client, runs)
    return Figure(
        "list of conversations, all engines stopped",
        silent,
        "the same, engine running",
        answered,
        "unchanged (≤ 1.2 ×)",
        lambda one: one.ratio <= 1.2,
    )


@contextmanager
def _service(database: str, engine: PrivateEngine) -> Iterator[Deployment]:
    with ExitStack() as stack:
        broker = stack.enter_context(running_valkey())
        url = stack.enter_context(running_store(database))
        service = stack.enter_context(
            deployed(engine, TINY_IMAGE, database_url=url, broker_url=broker.url, prints_log=False)
        )
        service.start()
        yield service


def _fill(service: Deployment, client: Client) -> None:
    ids = [client.start_sandbox() for _ in range(SANDBOXES)]
    for sandbox_id in ids:
        client.await_sandbox(sandbox_id, "RUNNING")
    with service.database.reading() as session:
        rows = session.exec(select(Sandbox)).all()
    for number in range(CONVERSATIONS):
        make_conversation(service.database, client.user, rows[number % len(rows)], title=f"Number {number}")


def _send(service: Deployment, client: Client, runs: int) -> Runs:
    request = make_request(LIST, client.user.headers)
    time_requests(service.url, [request] * SAMPLES)
    return [time_requests(service.url, [request] * SAMPLES) for _ in range(runs)]


def _node(service: Deployment) -> Node:
    with service.database.reading() as session:
        return session.exec(select(Node)).one()
