"""Docker's lists are outdated while its disk is full: doubtful entries are not believed."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from shared.states import Desired
from tests.factories import ApiUser
from tests.worker.network.scene import Scene
from tests.worker.scenarios import running, set_desired
from worker.engine.protocol import ContainerState, ContainerSummary, EngineError, EngineRefused, EngineUnavailable
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile

Edit = Callable[[ContainerSummary], ContainerSummary]


@pytest.fixture
def sandbox_id(scene: Scene, user: ApiUser) -> str:
    """A running sandbox with firewall rules."""
    scene.isolation.refresh()
    return running(scene.context, user)


def show(scene: Scene, monkeypatch: pytest.MonkeyPatch, sandbox_id: str, edit: Edit) -> None:
    """Let the engine list that container as edited; an observation still shows it as it is."""
    read, name = scene.engine.list_containers, container_name(sandbox_id)

    def outdated(installation: str) -> list[ContainerSummary]:
        return [edit(each) if each.name == name else each for each in read(installation)]

    monkeypatch.setattr(scene.engine, "list_containers", outdated)


def at(scene: Scene, address: str) -> Edit:
    """An entry that shows the container as running at that address."""
    networks = {scene.isolation._context.network.name: address}
    return lambda each: replace(each, state=ContainerState.RUNNING, networks=networks)


def without_address(summary: ContainerSummary) -> ContainerSummary:
    return replace(summary, state=ContainerState.CREATED, networks={})


def stop(scene: Scene, sandbox_id: str) -> None:
    set_desired(scene.context, sandbox_id, Desired.STOPPED)
    reconcile(scene.context, sandbox_id)


def test_stopped_container_that_is_listed_as_running_gets_no_rules(
    scene: Scene, sandbox_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = scene.address(sandbox_id)
    stop(scene, sandbox_id)
    show(scene, monkeypatch, sandbox_id, at(scene, address))
    scene.isolation.refresh()
    assert not scene.rules.sandboxes


def test_running_container_that_is_listed_without_address_keeps_its_rules(
    scene: Scene, sandbox_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(scene, monkeypatch, sandbox_id, without_address)
    scene.isolation.refresh()
    assert scene.rules.sandboxes == {scene.address(sandbox_id)}


@pytest.mark.parametrize("ended_first", [True, False])
def test_address_that_is_listed_twice_is_of_the_container_that_has_it(
    scene: Scene, sandbox_id: str, user: ApiUser, monkeypatch: pytest.MonkeyPatch, ended_first: bool
) -> None:
    both = [sandbox_id, running(scene.context, user)]
    ended, holder = both if ended_first else reversed(both)
    scene.engine.stop(container_name(ended), 1)
    show(scene, monkeypatch, ended, at(scene, scene.address(holder)))
    scene.isolation.refresh()
    assert scene.rules.sandboxes == {scene.address(holder)}
    assert scene.isolation._located.keys() == {holder}


def test_address_of_a_moved_container_belongs_to_the_next_one(
    scene: Scene, sandbox_id: str, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved, holder = sandbox_id, running(scene.context, user)
    at_both = {each: scene.address(each) for each in (moved, holder)}
    show(scene, monkeypatch, moved, at(scene, at_both[holder]))
    show(scene, monkeypatch, holder, without_address)
    scene.isolation.refresh()
    assert scene.rules.sandboxes == set(at_both.values())
    assert {each: found.address for each, found in scene.isolation._located.items()} == at_both


@pytest.mark.parametrize("error", [EngineUnavailable("timeout"), EngineRefused("no")])
def test_container_that_cannot_be_observed_keeps_its_rules_and_delays_no_other(
    scene: Scene, sandbox_id: str, user: ApiUser, monkeypatch: pytest.MonkeyPatch, error: EngineError
) -> None:
    ended = running(scene.context, user)
    address = scene.address(ended)
    scene.engine.stop(container_name(ended), 1)
    show(scene, monkeypatch, sandbox_id, without_address)

    def hang(name: str) -> None:
        if name == container_name(sandbox_id):
            raise error

    scene.engine.before["observe"] = hang
    scene.isolation.refresh()
    assert scene.rules.sandboxes == {scene.address(sandbox_id)} != {address}
    assert scene.isolation.check() is None
    assert scene.isolation._located.keys() == {sandbox_id}


@pytest.mark.usefixtures("sandbox_id")
def test_list_that_agrees_with_the_database_needs_no_observation(scene: Scene) -> None:
    scene.engine.calls.clear()
    scene.isolation.refresh()
    assert "observe" not in {verb for verb, _ in scene.engine.calls}
