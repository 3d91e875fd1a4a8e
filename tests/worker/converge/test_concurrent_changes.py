"""Wishes become facts: on both databases, around an engine in memory."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from sqlmodel import Session, col, select, update

from shared.clock import now
from shared.database import Database
from shared.errors import NotFound
from shared.jobs import CheckSandbox, StartConversation
from shared.models import Sandbox, SandboxTransition
from shared.states import MOVES, Desired, Stage, Status
from shared.store import sandboxes, specs, wishes
from tests.doubles import RecordingPublisher
from tests.factories import Person, make_start_task
from tests.fakes.engine import IMAGE, FakeEngine
from tests.worker.scenes import punctuated
from worker.containers import ContainerState
from worker.converge import converge
from worker.keeper import LeaseKeeper
from worker.parts import Parts
from worker.sandbox_container import container_name


def start(parts: Parts, user: Person) -> str:
    """Wish for a sandbox, as the API does."""
    with parts.database.transaction() as session:
        spec = specs.get_spec(session, IMAGE)
        return sandboxes.create(session, parts.vault, owner_id=user.id, spec=spec, due_at=now()).id


def wish(parts: Parts, sandbox_id: str, desired: Desired) -> None:
    """Wish for another state, as the API does."""
    with parts.database.transaction() as session:
        wishes.wish(session, session.get_one(Sandbox, sandbox_id), desired, due_at=now())


def row(parts: Parts, sandbox_id: str) -> Sandbox:
    with parts.database.reading() as session:
        return session.get_one(Sandbox, sandbox_id)


def history(parts: Parts, sandbox_id: str) -> list[str]:
    with parts.database.reading() as session:
        return [move.to_status for move in sandboxes.transitions(session, sandbox_id)]


def running(parts: Parts, user: Person) -> str:
    sandbox_id = start(parts, user)
    converge(parts, sandbox_id)
    assert row(parts, sandbox_id).status == Status.RUNNING
    return sandbox_id


def assert_settled(parts: Parts, sandbox_id: str) -> None:
    """Nobody holds the row, nothing is due, and the last wish was answered."""
    found = row(parts, sandbox_id)
    assert (found.lease_owner, found.lease_until, found.due_at) == (None, None, None)
    assert found.observed_generation == found.generation


class TestStart:
    def test_becomes_running_with_its_urls(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        sandbox_id = running(parts, user)
        found = row(parts, sandbox_id)
        assert engine.verbs() == ["create", "put_file", "start"]
        assert found.exposed_urls
        assert found.exposed_urls[0]["name"] == "AGENT_SERVER"
        assert found.ready_at is not None
        assert history(parts, sandbox_id) == ["STARTING", "RUNNING"]
        assert_settled(parts, sandbox_id)

    def test_keeps_its_key_out_of_what_inspect_shows(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        sandbox_id = running(parts, user)
        container = engine.containers[container_name(sandbox_id)]
        assert container.session_key
        assert container.session_key not in repr(container.request)

    def test_twin_message_changes_nothing(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        sandbox_id = running(parts, user)
        converge(parts, sandbox_id)
        assert engine.verbs() == ["create", "put_file", "start"]

    def test_message_about_no_row_is_dropped(self, parts: Parts, engine: FakeEngine) -> None:
        converge(parts, "0" * 32)
        assert engine.calls == []

    def test_worker_that_died_after_create_is_followed(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        sandbox_id = start(parts, user)

        def die(_name: str) -> None:
            raise SystemExit

        engine.before["put_file"] = die
        with pytest.raises(SystemExit):
            converge(parts, sandbox_id)
        engine.before.clear()
        expire_lease(parts, sandbox_id)
        converge(parts, sandbox_id)
        assert row(parts, sandbox_id).status == Status.RUNNING
        assert engine.verbs().count("create") == 1
        assert len(engine.containers) == 1

    def test_image_is_pulled_when_missing(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        engine.images.clear()
        engine.pullable = {IMAGE}
        running(parts, user)
        assert "pull" in engine.verbs()

    def test_engine_that_is_down_loses_nothing(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        sandbox_id = start(parts, user)
        engine.down = True
        for _ in range(parts.settings.most_attempts + 2):
            converge(parts, sandbox_id)
        found = row(parts, sandbox_id)
        assert (found.status, found.attempt) == (Status.STARTING, 0)
        assert found.due_at is not None
        engine.down = False
        converge(parts, sandbox_id)
        assert row(parts, sandbox_id).status == Status.RUNNING

    def test_wakes_the_start_task_that_waits(
        self, parts: Parts, user: Person, database: Database, publisher: RecordingPublisher
    ) -> None:
        sandbox_id = start(parts, user)
        task = make_start_task(database, user, row(parts, sandbox_id), stage=Stage.WAITING_FOR_SANDBOX, due_at=None)
        converge(parts, sandbox_id)
        assert publisher.jobs == [StartConversation(task.id, row(parts, sandbox_id).node_id)]


class TestFailure:
    def test_image_that_nobody_has(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        engine.images.clear()
        sandbox_id = start(parts, user)
        converge(parts, sandbox_id)
        self.assert_failed(parts, engine, sandbox_id, "image_pull_failed")

    def test_container_that_ends_at_boot(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        engine.at_boot = 3
        sandbox_id = start(parts, user)
        converge(parts, sandbox_id)
        self.assert_failed(parts, engine, sandbox_id, "exit_code")
        detail = row(parts, sandbox_id).detail or ""
        assert "exit code 3" in detail
        assert "the last line" in detail

    def test_agent_server_that_never_answers(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        engine.at_boot = "never"
        sandbox_id = start(parts, user)
        converge(parts, sandbox_id)
        self.assert_failed(parts, engine, sandbox_id, "health_timeout")

    def test_server_that_is_another_sandboxs(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        sandbox_id = start(parts, user)
        engine.impostors[container_name(sandbox_id)] = 100
        converge(parts, sandbox_id)
        self.assert_failed(parts, engine, sandbox_id, "wrong_agent_server")

    def test_server_of_another_that_had_the_port_for_a_moment(
        self, parts: Parts, user: Person, engine: FakeEngine
    ) -> None:
        sandbox_id = start(parts, user)
        engine.impostors[container_name(sandbox_id)] = 1
        converge(parts, sandbox_id)
        assert row(parts, sandbox_id).status == Status.RUNNING

    def test_engine_that_keeps_refusing(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        engine.refuse = {"create": 100}
        sandbox_id = start(parts, user)
        for _ in range(parts.settings.most_attempts):
            assert row(parts, sandbox_id).status == Status.STARTING
            converge(parts, sandbox_id)
        self.assert_failed(parts, engine, sandbox_id, "create_failed")

    def test_refusal_that_passes_is_not_held_against_it(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        engine.refuse = {"start": 2}
        sandbox_id = start(parts, user)
        for _ in range(3):
            converge(parts, sandbox_id)
        assert row(parts, sandbox_id).status == Status.RUNNING
        assert row(parts, sandbox_id).attempt == 0

    def test_late_message_keeps_the_first_reason(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        engine.at_boot = 3
        sandbox_id = start(parts, user)
        converge(parts, sandbox_id)
        mark_due(parts, sandbox_id)
        converge(parts, sandbox_id)
        self.assert_failed(parts, engine, sandbox_id, "exit_code")

    def test_resume_tries_again(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        engine.at_boot = 3
        sandbox_id = start(parts, user)
        converge(parts, sandbox_id)
        engine.at_boot = None
        wish(parts, sandbox_id, Desired.RUNNING)
        converge(parts, sandbox_id)
        assert row(parts, sandbox_id).status == Status.RUNNING
        assert row(parts, sandbox_id).reason is None

    def assert_failed(self, parts: Parts, engine: FakeEngine, sandbox_id: str, reason: str) -> None:
        found = row(parts, sandbox_id)
        assert (found.status, found.reason) == (Status.ERROR, reason)
        assert engine.containers == {}
        assert engine.volumes == {}
        assert_settled(parts, sandbox_id)


class TestPauseAndResume:
    def test_pause_freezes_and_resume_thaws(self, parts: Parts, user: Person) -> None:
        sandbox_id = running(parts, user)
        wish(parts, sandbox_id, Desired.PAUSED)
        converge(parts, sandbox_id)
        found = row(parts, sandbox_id)
        assert (found.status, found.pause_kind, found.exposed_urls) == (Status.PAUSED, "FROZEN", None)
        wish(parts, sandbox_id, Desired.RUNNING)
        converge(parts, sandbox_id)
        assert history(parts, sandbox_id) == ["STARTING", "RUNNING", "PAUSED", "RUNNING"]
        assert_settled(parts, sandbox_id)

    def test_resume_of_a_stopped_one_boots_it_again(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        sandbox_id = running(parts, user)
        wish(parts, sandbox_id, Desired.PAUSED)
        converge(parts, sandbox_id)
        engine.containers[container_name(sandbox_id)].state = ContainerState.EXITED
        mark_due(parts, sandbox_id)
        converge(parts, sandbox_id)
        assert row(parts, sandbox_id).pause_kind == "STOPPED"
        wish(parts, sandbox_id, Desired.RUNNING)
        converge(parts, sandbox_id)
        assert history(parts, sandbox_id)[-2:] == ["STARTING", "RUNNING"]


class TestStop:
    @pytest.mark.parametrize("frozen", [False, True])
    def test_frees_the_memory_and_keeps_the_files(
        self, parts: Parts, user: Person, engine: FakeEngine, frozen: bool
    ) -> None:
        sandbox_id = running(parts, user)
        if frozen:
            wish(parts, sandbox_id, Desired.PAUSED)
            converge(parts, sandbox_id)
        wish(parts, sandbox_id, Desired.STOPPED)
        converge(parts, sandbox_id)
        found = row(parts, sandbox_id)
        assert (found.status, found.pause_kind, found.reason) == (Status.PAUSED, "STOPPED", None)
        assert engine.containers[container_name(sandbox_id)].state == ContainerState.EXITED
        assert list(engine.volumes) == [container_name(sandbox_id)]
        assert_settled(parts, sandbox_id)

    def test_resume_boots_it_on_its_files(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        sandbox_id = self.stopped(parts, user)
        wish(parts, sandbox_id, Desired.RUNNING)
        converge(parts, sandbox_id)
        assert history(parts, sandbox_id)[-3:] == ["PAUSED", "STARTING", "RUNNING"]
        assert engine.verbs().count("create") == 1

    @pytest.mark.parametrize("desired", [Desired.PAUSED, Desired.STOPPED])
    def test_one_that_is_stopped_stays_so(
        self, parts: Parts, user: Person, engine: FakeEngine, desired: Desired
    ) -> None:
        sandbox_id = self.stopped(parts, user)
        engine.calls.clear()
        wish(parts, sandbox_id, desired)
        converge(parts, sandbox_id)
        assert (row(parts, sandbox_id).pause_kind, engine.verbs()) == ("STOPPED", [])
        assert_settled(parts, sandbox_id)

    def test_one_that_is_still_booting(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        sandbox_id = start(parts, user)
        once(engine, "start", lambda: wish(parts, sandbox_id, Desired.STOPPED))
        converge(parts, sandbox_id)
        assert row(parts, sandbox_id).pause_kind == "STOPPED"
        assert_settled(parts, sandbox_id)

    def test_running_agents_are_interrupted_first(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        sandbox_id = running(parts, user)
        server = engine.servers[container_name(sandbox_id)]
        talk = server.add("1" * 32, execution_status="running")
        wish(parts, sandbox_id, Desired.STOPPED)
        seen: list[str] = []
        once(engine, "stop", lambda: seen.append(talk.execution_status))
        converge(parts, sandbox_id)
        assert seen == ["paused"]

    def test_resumed_behind_our_back(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        sandbox_id = self.stopped(parts, user)
        for state, status, reason in (
            (ContainerState.RUNNING, Status.RUNNING, "resumed_outside"),
            (ContainerState.FROZEN, Status.PAUSED, "paused_outside"),
        ):
            engine.containers[container_name(sandbox_id)].state = state
            mark_due(parts, sandbox_id)
            converge(parts, sandbox_id)
            assert (row(parts, sandbox_id).status, row(parts, sandbox_id).reason) == (status, reason)

    def stopped(self, parts: Parts, user: Person) -> str:
        sandbox_id = running(parts, user)
        wish(parts, sandbox_id, Desired.STOPPED)
        converge(parts, sandbox_id)
        return sandbox_id


class TestDelete:
    @pytest.mark.parametrize("state", list(ContainerState))
    def test_from_any_state_of_the_container(
        self, parts: Parts, user: Person, engine: FakeEngine, state: ContainerState
    ) -> None:
        sandbox_id = running(parts, user)
        name = container_name(sandbox_id)
        engine.containers[name].state = state
        if state in (ContainerState.ABSENT, ContainerState.REMOVING):
            del engine.containers[name]
        wish(parts, sandbox_id, Desired.DELETED)
        converge(parts, sandbox_id)
        assert row(parts, sandbox_id).status == Status.DELETED
        assert (engine.containers, engine.volumes) == ({}, {})
        assert history(parts, sandbox_id)[-2:] == ["DELETING", "DELETED"]
        assert_settled(parts, sandbox_id)

    def test_is_not_told_before_the_engine_confirms(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        sandbox_id = running(parts, user)
        wish(parts, sandbox_id, Desired.DELETED)
        engine.refuse = {"remove": 50}
        for _ in range(parts.settings.most_attempts + 2):
            converge(parts, sandbox_id)
        assert row(parts, sandbox_id).status == Status.DELETING
        engine.refuse = {}
        converge(parts, sandbox_id)
        assert row(parts, sandbox_id).status == Status.DELETED

    def test_has_no_way_back(self, parts: Parts, user: Person) -> None:
        sandbox_id = running(parts, user)
        wish(parts, sandbox_id, Desired.DELETED)
        with pytest.raises(NotFound):
            wish(parts, sandbox_id, Desired.RUNNING)


class TestInterleavings:
    """Wishes that arrive while another is being carried out, at every point of it."""

    @pytest.mark.parametrize("verb", ["observe", "create", "put_file", "start"])
    @pytest.mark.parametrize("overtaking", [Desired.DELETED, Desired.PAUSED])
    def test_wish_overtakes_a_start(
        self, parts: Parts, user: Person, engine: FakeEngine, verb: str, overtaking: Desired
    ) -> None:
        sandbox_id = start(parts, user)
        once(engine, verb, lambda: wish(parts, sandbox_id, overtaking))
        converge(parts, sandbox_id)
        expected = Status.DELETED if overtaking == Desired.DELETED else Status.PAUSED
        assert row(parts, sandbox_id).status == expected
        assert bool(engine.containers) == (overtaking == Desired.PAUSED)
        assert_settled(parts, sandbox_id)
        assert_legal(parts, sandbox_id)

    def test_delete_overtakes_a_boot_that_never_ends(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        patient = replace(parts, settings=parts.settings.model_copy(update={"health_timeout": 60}))
        engine.at_boot = "never"
        sandbox_id = start(patient, user)
        booting = threading.Event()
        engine.before["observe"] = lambda _name: booting.set() if engine.containers else None
        worker = threading.Thread(target=converge, args=(patient, sandbox_id))
        worker.start()
        assert booting.wait(10)
        wish(patient, sandbox_id, Desired.DELETED)
        worker.join(10)
        assert not worker.is_alive()
        assert row(patient, sandbox_id).status == Status.DELETED
        assert engine.containers == {}

    @pytest.mark.parametrize("verb", ["freeze", "observe"])
    def test_resume_overtakes_a_pause(self, parts: Parts, user: Person, engine: FakeEngine, verb: str) -> None:
        sandbox_id = running(parts, user)
        wish(parts, sandbox_id, Desired.PAUSED)
        once(engine, verb, lambda: wish(parts, sandbox_id, Desired.RUNNING))
        converge(parts, sandbox_id)
        assert row(parts, sandbox_id).status == Status.RUNNING
        assert_settled(parts, sandbox_id)

    def test_twin_messages_at_once_make_one_container(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        sandbox_id = start(parts, user)
        twin = replace(parts, keeper=LeaseKeeper(parts.database, "worker-2", 15))
        once(engine, "create", lambda: converge(twin, sandbox_id))
        converge(parts, sandbox_id)
        assert engine.verbs().count("create") == 1
        assert row(parts, sandbox_id).status == Status.RUNNING

    def test_worker_that_lost_its_lease_touches_nothing(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        sandbox_id = start(parts, user)
        other = replace(parts, keeper=LeaseKeeper(parts.database, "worker-2", 15))

        def sleep_too_long() -> None:
            expire_lease(parts, sandbox_id)
            converge(other, sandbox_id)
            wish(parts, sandbox_id, Desired.DELETED)
            converge(other, sandbox_id)

        once(engine, "observe", sleep_too_long)
        converge(parts, sandbox_id)
        assert row(parts, sandbox_id).status == Status.DELETED
        assert engine.containers == {}
        assert history(parts, sandbox_id) == ["STARTING", "RUNNING", "DELETING", "DELETED"]

    def test_worker_that_lost_its_lease_takes_no_step(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        sandbox_id = start(parts, user)
        other = replace(parts, keeper=LeaseKeeper(parts.database, "worker-2", 15))

        def sleep_too_long() -> None:
            expire_lease(parts, sandbox_id)
            converge(other, sandbox_id)

        # Between its look at the engine and its look at the row.
        sleeper, database = punctuated(parts, 2, sleep_too_long)
        converge(sleeper, sandbox_id)
        assert database.passed > 2
        assert engine.verbs() == ["create", "put_file", "start"]
        assert_settled(parts, sandbox_id)

    @pytest.mark.parametrize("desired", [Desired.PAUSED, Desired.DELETED])
    def test_wish_that_comes_between_the_last_look_and_the_answer(
        self, parts: Parts, user: Person, desired: Desired
    ) -> None:
        sandbox_id = start(parts, user)
        once_settling = punctuated(parts, 0, lambda: None)[1]
        right = once_settling.transaction

        @contextmanager
        def transaction() -> Iterator[Session]:
            if row(parts, sandbox_id).desired == Desired.RUNNING and container_runs(parts):
                wish(parts, sandbox_id, desired)
            with right() as session:
                yield session

        once_settling.transaction = transaction  # type: ignore[method-assign]
        converge(replace(parts, database=once_settling), sandbox_id)
        assert row(parts, sandbox_id).status == (Status.PAUSED if desired == Desired.PAUSED else Status.DELETED)
        assert_settled(parts, sandbox_id)

    @pytest.mark.parametrize(
        ("verb", "first", "then"),
        [
            ("start", Desired.RUNNING, Desired.PAUSED),
            ("freeze", Desired.PAUSED, Desired.RUNNING),
            ("unfreeze", Desired.RUNNING, Desired.PAUSED),
        ],
    )
    def test_step_that_comes_after_the_next_workers_is_made_good(
        self, parts: Parts, user: Person, engine: FakeEngine, verb: str, first: Desired, then: Desired
    ) -> None:
        """No fence keeps an engine from taking the call of a worker that slept just before it."""
        sandbox_id = start(parts, user) if verb == "start" else running(parts, user)
        if verb == "unfreeze":
            wish(parts, sandbox_id, Desired.PAUSED)
            converge(parts, sandbox_id)
        wish(parts, sandbox_id, first)
        other = replace(parts, keeper=LeaseKeeper(parts.database, "worker-2", 15))

        def sleep_too_long() -> None:
            expire_lease(parts, sandbox_id)
            wish(parts, sandbox_id, then)
            converge(other, sandbox_id)

        once(engine, verb, sleep_too_long)
        converge(parts, sandbox_id)
        assert isinstance(parts.publisher, RecordingPublisher)
        assert CheckSandbox(sandbox_id, row(parts, sandbox_id).node_id) in parts.publisher.jobs
        converge(other, sandbox_id)
        assert row(parts, sandbox_id).status == then
        assert row(parts, sandbox_id).reason is None
        assert_settled(parts, sandbox_id)

    def test_step_that_comes_late_wakes_nothing_that_failed(
        self, parts: Parts, user: Person, engine: FakeEngine
    ) -> None:
        sandbox_id = running(parts, user)
        wish(parts, sandbox_id, Desired.PAUSED)
        other = replace(parts, keeper=LeaseKeeper(parts.database, "worker-2", 15))

        def sleep_too_long() -> None:
            expire_lease(parts, sandbox_id)
            engine.containers[container_name(sandbox_id)].state = ContainerState.DEAD
            wish(parts, sandbox_id, Desired.RUNNING)
            engine.images.clear()
            converge(other, sandbox_id)

        once(engine, "freeze", sleep_too_long)
        converge(parts, sandbox_id)
        found = row(parts, sandbox_id)
        assert (found.status, found.generation) == (Status.ERROR, found.observed_generation)

    def test_lease_is_kept_through_a_step_longer_than_it(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        brief = replace(parts, keeper=LeaseKeeper(parts.database, "worker-1", 0.2))
        other = replace(parts, keeper=LeaseKeeper(parts.database, "worker-2", 15))
        sandbox_id = start(parts, user)

        def take_long() -> None:
            until = row(parts, sandbox_id).lease_until
            while (lease := row(parts, sandbox_id).lease_until) == until or (until and lease and now() < until):
                brief.keeper.renew_all()
            converge(other, sandbox_id)

        once(engine, "create", take_long)
        converge(brief, sandbox_id)
        assert engine.verbs().count("create") == 1
        assert row(parts, sandbox_id).status == Status.RUNNING


class TestBehindOurBack:
    def test_container_that_died_is_an_error_with_its_files_kept(
        self, parts: Parts, user: Person, engine: FakeEngine
    ) -> None:
        sandbox_id = running(parts, user)
        container = engine.containers[container_name(sandbox_id)]
        container.state, container.exit_code, container.oom_killed = ContainerState.EXITED, 137, True
        mark_due(parts, sandbox_id)
        converge(parts, sandbox_id)
        assert (row(parts, sandbox_id).status, row(parts, sandbox_id).reason) == (Status.ERROR, "oom_killed")
        assert container_name(sandbox_id) in engine.volumes
        wish(parts, sandbox_id, Desired.RUNNING)
        converge(parts, sandbox_id)
        assert row(parts, sandbox_id).status == Status.RUNNING

    def test_container_that_vanished_is_made_again_on_its_files(
        self, parts: Parts, user: Person, engine: FakeEngine
    ) -> None:
        sandbox_id = running(parts, user)
        del engine.containers[container_name(sandbox_id)]
        mark_due(parts, sandbox_id)
        converge(parts, sandbox_id)
        assert row(parts, sandbox_id).reason == "container_missing"
        wish(parts, sandbox_id, Desired.RUNNING)
        converge(parts, sandbox_id)
        assert row(parts, sandbox_id).status == Status.RUNNING

    def test_container_paused_by_an_operator_shows_as_paused(
        self, parts: Parts, user: Person, engine: FakeEngine
    ) -> None:
        sandbox_id = running(parts, user)
        engine.freeze(container_name(sandbox_id))
        mark_due(parts, sandbox_id)
        converge(parts, sandbox_id)
        assert (row(parts, sandbox_id).status, row(parts, sandbox_id).reason) == (Status.PAUSED, "paused_outside")


def container_runs(parts: Parts) -> bool:
    """Whether the engine has a container that runs: what comes next is the answer."""
    assert isinstance(parts.engine, FakeEngine)
    return any(found.state == ContainerState.RUNNING for found in parts.engine.containers.values())


def once(engine: FakeEngine, verb: str, action: object) -> None:
    """Do something just before the verb is next carried out."""

    def act(_name: str) -> None:
        del engine.before[verb]
        action()  # type: ignore[operator]

    engine.before[verb] = act


def expire_lease(parts: Parts, sandbox_id: str) -> None:
    """Let time pass for the lease alone."""
    with parts.database.transaction() as session:
        session.execute(update(Sandbox).where(col(Sandbox.id) == sandbox_id).values(lease_until=now()))


def mark_due(parts: Parts, sandbox_id: str) -> None:
    with parts.database.transaction() as session:
        session.execute(update(Sandbox).where(col(Sandbox.id) == sandbox_id).values(due_at=now()))


def assert_legal(parts: Parts, sandbox_id: str) -> None:
    """Every move in the history is in the table."""
    with parts.database.reading() as session:
        moves = session.exec(select(SandboxTransition).where(SandboxTransition.sandbox_id == sandbox_id)).all()
    assert all(move.from_status is None or move.to_status in MOVES[Status(move.from_status)] for move in moves)


def test_defect_of_ours_ends_in_an_error_that_says_so(parts: Parts, user: Person, engine: FakeEngine) -> None:
    """A session key that can't be decrypted: no turn will ever succeed."""
    sandbox_id = start(parts, user)
    with parts.database.transaction() as session:
        session.execute(update(Sandbox).where(col(Sandbox.id) == sandbox_id).values(session_key="damaged"))
    for _ in range(parts.settings.most_attempts):
        assert row(parts, sandbox_id).status == Status.STARTING
        converge(parts, sandbox_id)
    assert (row(parts, sandbox_id).status, row(parts, sandbox_id).reason) == (Status.ERROR, "internal_error")
    wish(parts, sandbox_id, Desired.DELETED)
    converge(parts, sandbox_id)
    assert row(parts, sandbox_id).status == Status.DELETED
    assert engine.containers == {}
