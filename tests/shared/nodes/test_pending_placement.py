"""Placement of sandboxes, within the capacity of every node."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest
from sqlmodel import Session

from shared.clock import now
from shared.db.database import Database
from shared.errors import NotFound
from shared.models import NodeSpecBackoff, Sandbox, SandboxSpec
from shared.nodes import placement
from shared.nodes import registry as node_registry
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes import status as sandbox_status
from shared.states import Desired, NodeStatus, Status
from shared.warm_pool import start as sandbox_start
from tests.factories import SPEC_ID, VAULT, ApiUser, make_node, make_sandbox
from tests.interleaving import overlap


def create(database: Database, owner: ApiUser, spec: SandboxSpec) -> Sandbox:
    with database.transaction() as session:
        return create_in(session, owner, spec)


def create_in(session: Session, owner: ApiUser, spec: SandboxSpec) -> Sandbox:
    return sandbox_start.start(session, VAULT, owner_id=owner.id, spec=spec, due_at=now()).sandbox


def place(database: Database) -> str | None:
    with database.transaction() as session:
        return placement.place(session, SPEC_ID)


def place_waiting_in(session: Session) -> list[tuple[str, str]]:
    found = [
        (row_id, placement.place_waiting(session, row_id, "own", due_at=now()))
        for row_id in placement.find_waiting(session, "own")
    ]
    return [(row_id, node_id) for row_id, node_id in found if node_id is not None]


def place_waiting(database: Database) -> list[tuple[str, str]]:
    with database.transaction() as session:
        return place_waiting_in(session)


def test_node_with_the_most_room_is_chosen(database: Database, user: ApiUser, spec: SandboxSpec) -> None:
    make_node(database, "small", capacity=2)
    make_node(database, "large", capacity=4)
    placed = [create(database, user, spec).node_id for _ in range(6)]
    assert placed[:2] == ["large", "large"]
    assert Counter(placed) == {"large": 4, "small": 2}


def test_full_node_gets_no_sandboxes(database: Database, user: ApiUser, spec: SandboxSpec) -> None:
    make_node(database, "a", capacity=1)
    assert create(database, user, spec).node_id == "a"
    assert create(database, user, spec).node_id is None


@pytest.mark.parametrize("status", sorted(set(Status) - {Status.DELETED}))
def test_sandbox_takes_a_slot_in_every_state(database: Database, user: ApiUser, status: Status) -> None:
    make_node(database, "a", capacity=1)
    make_sandbox(database, user, status=status, node_id="a")
    assert place(database) is None


def test_deleted_sandbox_takes_no_slot(database: Database, user: ApiUser) -> None:
    make_node(database, "a", capacity=1)
    make_sandbox(database, user, status=Status.DELETED, node_id="a")
    assert place(database) == "a"


@pytest.mark.parametrize("status", [NodeStatus.CORDONED, NodeStatus.LOST])
def test_nodes_take_sandboxes_only_when_ready(database: Database, status: NodeStatus) -> None:
    make_node(database, "a", status=status)
    assert place(database) is None


def test_silent_node_takes_no_sandboxes(database: Database) -> None:
    make_node(database, "a", heartbeat_at=now() - placement.HEARTBEAT_LIMIT - timedelta(seconds=1))
    assert place(database) is None
    with database.transaction() as session:
        node_registry.record_heartbeat(session, "a", capacity=1, problem=None)
    assert place(database) == "a"


def test_two_placements_don_t_share_the_last_slot(database: Database, user: ApiUser, spec: SandboxSpec) -> None:
    make_node(database, "a", capacity=1)
    first, second = overlap(
        database,
        lambda session: create_in(session, user, spec).node_id,
        lambda session: create_in(session, user, spec).node_id,
    )
    assert (first, second) == ("a", None)


def test_concurrent_placements_never_exceed_the_capacity(database: Database, user: ApiUser, spec: SandboxSpec) -> None:
    make_node(database, "a", capacity=2)
    make_node(database, "b", capacity=1)
    start = Barrier(6)

    def attempt(_number: int) -> str | None:
        start.wait(30)
        return create(database, user, spec).node_id

    with ThreadPoolExecutor(6) as pool:
        placed = Counter(pool.map(attempt, range(6)))
    assert placed == {"a": 2, "b": 1, None: 3}


def test_waiting_sandboxes_are_placed_oldest_first(database: Database, user: ApiUser) -> None:
    first = make_sandbox(database, user, status=Status.STARTING, node_id=None, due_at=None)
    second = make_sandbox(database, user, status=Status.STARTING, node_id=None, created_at=now() + timedelta(hours=1))
    assert place_waiting(database) == []
    make_node(database, "a", capacity=1)
    assert place_waiting(database) == [(first.id, "a")]
    assert place_waiting(database) == []
    with database.reading() as session:
        assert session.get_one(Sandbox, first.id).due_at is not None
        assert session.get_one(Sandbox, second.id).node_id is None
    make_node(database, "b", capacity=1)
    assert place_waiting(database) == [(second.id, "b")]


def test_waiting_sandbox_gets_the_slot_of_a_deleted_one(database: Database, user: ApiUser) -> None:
    make_node(database, "a", capacity=1)
    old = make_sandbox(database, user, status=Status.DELETING, node_id="a")
    waiting = make_sandbox(database, user, status=Status.STARTING, node_id=None)
    assert place_waiting(database) == []
    with database.transaction() as session:
        sandbox_status.set_status(session, old, sandbox_status.ObservedState(Status.DELETED))
    assert place_waiting(database) == [(waiting.id, "a")]


def test_two_sweeps_place_a_sandbox_once(database: Database, user: ApiUser) -> None:
    make_node(database, "a", capacity=1)
    make_node(database, "b", capacity=1)
    waiting = make_sandbox(database, user, status=Status.STARTING, node_id=None)

    def place_all(session: Session) -> list[tuple[str, str]]:
        return place_waiting_in(session)

    assert overlap(database, place_all, place_all) == ([(waiting.id, "a")], [])


def test_tombstone_without_a_node_is_not_placed(database: Database, user: ApiUser) -> None:
    make_node(database, "a")
    make_sandbox(database, user, status=Status.DELETED, node_id=None)
    assert place_waiting(database) == []


def test_heartbeat_records_a_node_and_its_problem(database: Database) -> None:
    for problem, status in (("no engine", NodeStatus.LOST), (None, NodeStatus.READY)):
        with database.transaction() as session:
            node_registry.record_heartbeat(session, "a", capacity=3, problem=problem)
        with database.reading() as session:
            (node,) = node_registry.list_nodes(session)
        assert (node.status, node.capacity, node.detail) == (status, 3, problem)


def test_heartbeat_keeps_a_cordon(database: Database) -> None:
    make_node(database, "a", status=NodeStatus.CORDONED)
    with database.transaction() as session:
        node_registry.record_heartbeat(session, "a", capacity=3, problem=None)
    with database.reading() as session:
        assert node_registry.list_nodes(session)[0].status == NodeStatus.CORDONED


def test_two_workers_of_a_new_node_can_send_heartbeats(database: Database) -> None:
    def heartbeat(capacity: int) -> Callable[[Session], object]:
        return lambda session: node_registry.record_heartbeat(session, "a", capacity=capacity, problem=None)

    def heartbeat_and_flush(session: Session) -> None:
        heartbeat(3)(session)
        session.flush()

    overlap(database, heartbeat_and_flush, heartbeat(4))
    with database.reading() as session:
        (node,) = node_registry.list_nodes(session)
    assert (node.status, node.capacity) == (NodeStatus.READY, 4)


@pytest.mark.parametrize(("problem", "status"), [("no engine", NodeStatus.LOST), (None, NodeStatus.READY)])
def test_uncordoned_node_has_the_status_its_worker_reported(
    database: Database, problem: str | None, status: NodeStatus
) -> None:
    make_node(database, "a")
    with database.transaction() as session:
        node_registry.cordon(session, "a")
        node_registry.record_heartbeat(session, "a", capacity=3, problem=problem)
    assert place(database) is None
    with database.transaction() as session:
        node_registry.uncordon(session, "a")
    with database.reading() as session:
        assert node_registry.list_nodes(session)[0].status == status
    assert place(database) == (None if problem else "a")


@pytest.mark.parametrize("act", [node_registry.cordon, node_registry.uncordon])
def test_unknown_node_is_not_found(database: Database, act: Callable[[Session, str], None]) -> None:
    with database.transaction() as session, pytest.raises(NotFound):
        act(session, "a")


def test_installation_keeps_its_id(database: Database) -> None:
    with database.transaction() as session:
        first = node_registry.installation_id(session)
    with database.transaction() as session:
        assert node_registry.installation_id(session) == first


def test_two_processes_that_start_first_agree_on_the_installation(database: Database) -> None:
    first, second = overlap(database, node_registry.installation_id, node_registry.installation_id)
    assert first == second


def test_new_sandbox_is_desired_running(database: Database, user: ApiUser, spec: SandboxSpec) -> None:
    sandbox = create(database, user, spec)
    assert (sandbox.desired, sandbox.status, sandbox.generation) == (Desired.RUNNING, Status.STARTING, 1)
    with database.reading() as session:
        (transition,) = sandbox_queries.transitions(session, sandbox.id)
    assert (transition.from_status, transition.to_status) == (None, Status.STARTING)


def test_waiting_sandbox_to_be_deleted_needs_no_room(database: Database, user: ApiUser) -> None:
    make_node(database, "own", capacity=1)
    make_sandbox(database, user, node_id="own")
    deleted = make_sandbox(database, user, status=Status.STARTING, node_id=None, desired=Desired.DELETED)
    make_sandbox(database, user, status=Status.STARTING, node_id=None)
    assert place_waiting(database) == [(deleted.id, "own")]


def test_many_sandboxes_that_wait_for_room_delay_no_delete(database: Database, user: ApiUser) -> None:
    make_node(database, "own", capacity=1)
    make_sandbox(database, user, node_id="own")
    for _ in range(3):
        make_sandbox(database, user, status=Status.STARTING, node_id=None)
    deleted = make_sandbox(database, user, status=Status.STARTING, node_id=None, desired=Desired.DELETED)
    with database.reading() as session:
        assert placement.find_waiting(session, "own", limit=2) == [deleted.id]


def test_many_sandboxes_that_wait_for_a_spec_delay_no_other_spec(database: Database, user: ApiUser) -> None:
    make_node(database, "a", capacity=9)
    for _ in range(3):
        make_sandbox(database, user, status=Status.STARTING, node_id=None, spec_id="broken/image:1")
    waiting = make_sandbox(database, user, status=Status.STARTING, node_id=None)
    until = now() + timedelta(minutes=1)
    with database.transaction() as session:
        session.add(NodeSpecBackoff(node_id="a", spec_id="broken/image:1", failures=3, backoff_until=until))
    with database.reading() as session:
        assert placement.find_waiting(session, "own", limit=2) == [waiting.id]


def test_deletes_are_placed_before_starts(database: Database, user: ApiUser) -> None:
    make_node(database, "own", capacity=9)
    started = make_sandbox(database, user, status=Status.STARTING, node_id=None)
    deleted = make_sandbox(database, user, status=Status.STARTING, node_id=None, desired=Desired.DELETED)
    assert place_waiting(database) == [(deleted.id, "own"), (started.id, "own")]
