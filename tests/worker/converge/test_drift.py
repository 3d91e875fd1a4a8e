"""What changed outside is reported and not fought; so is a defect of ours."""

from sqlmodel import col, update

from shared.models import Sandbox
from shared.states import Desired, Status
from tests.factories import Person
from tests.fakes.engine import FakeEngine
from tests.worker.converge.sandboxes import mark_due, row, running, start, wish
from worker.containers import ContainerState
from worker.converge import converge
from worker.parts import Parts
from worker.sandbox_container import container_name


class TestDrift:
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
