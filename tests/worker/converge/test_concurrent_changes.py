"""Changes and workers that meet on one sandbox: orders that overtake, leases that are lost."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from sqlmodel import Session

from shared.clock import now
from shared.database import Database
from shared.jobs import CheckSandbox
from shared.states import Desired, Status
from shared.store import sandboxes
from shared.store.sandboxes import WishAsFound
from tests.doubles import RecordingPublisher
from tests.factories import Person
from tests.fakes.engine import FakeEngine
from tests.worker.converge.sandboxes import (
    assert_legal,
    assert_settled,
    container_runs,
    expire_lease,
    history,
    once,
    row,
    running,
    start,
    wish,
)
from tests.worker.scenes import punctuated
from worker.containers import ContainerState
from worker.converge import converge
from worker.keeper import LeaseKeeper
from worker.parts import Parts
from worker.sandbox_container import container_name


class TestConcurrentChanges:
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

        once_settling.transaction = transaction  # type: ignore[method-assign, assignment]
        converge(replace(parts, database=once_settling), sandbox_id)
        assert row(parts, sandbox_id).status == (Status.PAUSED if desired == Desired.PAUSED else Status.DELETED)
        assert_settled(parts, sandbox_id)

    def test_desired_state_that_comes_between_the_look_at_another_and_its_acknowledgement(
        self, parts: Parts, user: Person, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sandbox_id = running(parts, user)
        wish(parts, sandbox_id, Desired.PAUSED)
        once(engine, "observe", lambda: wish(parts, sandbox_id, Desired.RUNNING))

        def find_and_be_overtaken(database: Database, row_id: str, fence: int) -> WishAsFound | None:
            monkeypatch.undo()
            found = sandboxes.find_wish(database, row_id, fence)
            wish(parts, sandbox_id, Desired.PAUSED)
            engine.impostors[container_name(sandbox_id)] = 100  # so that the worker ends without another look
            return found

        monkeypatch.setattr("worker.converge.sandboxes.find_wish", find_and_be_overtaken)
        converge(parts, sandbox_id)
        found = row(parts, sandbox_id)
        assert found.observed_generation == found.generation == 4

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
