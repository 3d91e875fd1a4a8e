"""A delete, from any state."""

import pytest

from shared.errors import NotFound
from shared.states import Desired, Status
from tests.factories import Person
from tests.fakes.engine import FakeEngine
from tests.worker.converge.sandboxes import assert_settled, history, row, running, wish
from worker.containers import ContainerState
from worker.converge import converge
from worker.parts import Parts
from worker.sandbox_container import container_name


class TestDelete:
    @pytest.mark.parametrize("state", list(ContainerState))
    def test_delete_from_any_state_of_the_container(
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

    def test_delete_is_not_shown_before_the_engine_confirms(
        self, parts: Parts, user: Person, engine: FakeEngine
    ) -> None:
        sandbox_id = running(parts, user)
        wish(parts, sandbox_id, Desired.DELETED)
        engine.refuse = {"remove": 50}
        for _ in range(parts.settings.most_attempts + 2):
            converge(parts, sandbox_id)
        assert row(parts, sandbox_id).status == Status.DELETING
        engine.refuse = {}
        converge(parts, sandbox_id)
        assert row(parts, sandbox_id).status == Status.DELETED

    def test_delete_has_no_way_back(self, parts: Parts, user: Person) -> None:
        sandbox_id = running(parts, user)
        wish(parts, sandbox_id, Desired.DELETED)
        with pytest.raises(NotFound):
            wish(parts, sandbox_id, Desired.RUNNING)
