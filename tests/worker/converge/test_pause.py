"""Pause, stop and resume."""

import pytest

from shared.states import Desired, Status
from tests.factories import Person
from tests.fakes.engine import FakeEngine
from tests.worker.converge.sandboxes import assert_settled, history, mark_due, once, row, running, start, wish
from worker.containers import ContainerState
from worker.converge import converge
from worker.parts import Parts
from worker.sandbox_container import container_name


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
    def test_stopped_sandbox_stays_stopped(
        self, parts: Parts, user: Person, engine: FakeEngine, desired: Desired
    ) -> None:
        sandbox_id = self.stopped(parts, user)
        engine.calls.clear()
        wish(parts, sandbox_id, desired)
        converge(parts, sandbox_id)
        assert (row(parts, sandbox_id).pause_kind, engine.verbs()) == ("STOPPED", [])
        assert_settled(parts, sandbox_id)

    def test_stop_during_the_boot(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
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

    def test_sandbox_resumed_outside_shows_as_running(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
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
