"""Docker's lists are outdated while its disk is full: doubtful entries are not believed."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from shared.models import Sandbox
from shared.states import Desired
from tests.factories import ApiUser, make_spec
from tests.worker.network.testbed import NetworkTestbed
from tests.worker.scenarios import change, running, set_desired
from worker.engine.protocol import ContainerState, ContainerSummary, EngineError, EngineRefused, EngineUnavailable
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile

Edit = Callable[[ContainerSummary], ContainerSummary]


@pytest.fixture
def sandbox_id(testbed: NetworkTestbed, user: ApiUser) -> str:
    """A running sandbox with firewall rules."""
    testbed.isolation.refresh()
    return running(testbed.context, user)


def show(testbed: NetworkTestbed, monkeypatch: pytest.MonkeyPatch, sandbox_id: str, edit: Edit) -> None:
    """Let the engine list that container as edited; an observation still shows it as it is."""
    read, name = testbed.engine.list_containers, container_name(sandbox_id)

    def outdated(installation: str) -> list[ContainerSummary]:
        return [edit(each) if each.name == name else each for each in read(installation)]

    monkeypatch.setattr(testbed.engine, "list_containers", outdated)


def at(testbed: NetworkTestbed, address: str) -> Edit:
    """An entry that shows the container as running at that address."""
    networks = {testbed.isolation._context.network.name: address}
    return lambda each: replace(each, state=ContainerState.RUNNING, networks=networks)


def without_address(summary: ContainerSummary) -> ContainerSummary:
    return replace(summary, state=ContainerState.CREATED, networks={})


def stop(testbed: NetworkTestbed, sandbox_id: str) -> None:
    set_desired(testbed.context, sandbox_id, Desired.STOPPED)
    reconcile(testbed.context, sandbox_id)


def test_stopped_container_that_is_listed_as_running_gets_no_rules(
    testbed: NetworkTestbed, sandbox_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = testbed.address(sandbox_id)
    stop(testbed, sandbox_id)
    show(testbed, monkeypatch, sandbox_id, at(testbed, address))
    testbed.isolation.refresh()
    assert not testbed.rules.sandboxes


def test_running_container_that_is_listed_without_address_keeps_its_rules(
    testbed: NetworkTestbed, sandbox_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(testbed, monkeypatch, sandbox_id, without_address)
    testbed.isolation.refresh()
    assert testbed.rules.sandboxes == {testbed.address(sandbox_id)}


@pytest.mark.parametrize("ended_first", [True, False])
def test_address_that_is_listed_twice_is_of_the_container_that_has_it(
    testbed: NetworkTestbed, sandbox_id: str, user: ApiUser, monkeypatch: pytest.MonkeyPatch, ended_first: bool
) -> None:
    both = [sandbox_id, running(testbed.context, user)]
    ended, holder = both if ended_first else reversed(both)
    testbed.engine.stop(container_name(ended), 1)
    show(testbed, monkeypatch, ended, at(testbed, testbed.address(holder)))
    testbed.isolation.refresh()
    assert testbed.rules.sandboxes == {testbed.address(holder)}
    assert testbed.isolation._located.keys() == {holder}


def test_address_of_a_moved_container_belongs_to_the_next_one(
    testbed: NetworkTestbed, sandbox_id: str, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved, holder = sandbox_id, running(testbed.context, user)
    at_both = {each: testbed.address(each) for each in (moved, holder)}
    show(testbed, monkeypatch, moved, at(testbed, at_both[holder]))
    show(testbed, monkeypatch, holder, without_address)
    testbed.isolation.refresh()
    assert testbed.rules.sandboxes == set(at_both.values())
    assert {each: found.address for each, found in testbed.isolation._located.items()} == at_both


@pytest.mark.parametrize("error", [EngineUnavailable("timeout"), EngineRefused("no")])
def test_container_that_cannot_be_observed_keeps_its_rules_and_delays_no_other(
    testbed: NetworkTestbed, sandbox_id: str, user: ApiUser, monkeypatch: pytest.MonkeyPatch, error: EngineError
) -> None:
    ended = running(testbed.context, user)
    address = testbed.address(ended)
    testbed.engine.stop(container_name(ended), 1)
    show(testbed, monkeypatch, sandbox_id, without_address)

    def hang(name: str) -> None:
        if name == container_name(sandbox_id):
            raise error

    testbed.engine.before["observe"] = hang
    testbed.isolation.refresh()
    assert testbed.rules.sandboxes == {testbed.address(sandbox_id)} != {address}
    assert testbed.isolation.check() is None
    assert testbed.isolation._located.keys() == {sandbox_id}


@pytest.mark.usefixtures("sandbox_id")
def test_list_that_agrees_with_the_database_needs_no_observation(testbed: NetworkTestbed) -> None:
    testbed.engine.calls.clear()
    testbed.isolation.refresh()
    assert "observe" not in {verb for verb, _ in testbed.engine.calls}


def test_address_of_another_sandbox_with_the_name_gets_no_rules(
    testbed: NetworkTestbed, user: ApiUser, sandbox_id: str
) -> None:
    """Something else has swapped the names of two containers. One has ended, and so its entry is doubtful."""
    address, ended, engine = testbed.address(sandbox_id), running(testbed.context, user), testbed.engine
    make_spec(testbed.context.database, "other", egress="203.0.113.0/24")
    change(testbed.context, Sandbox, ended, spec_id="other")
    engine.stop(container_name(ended), 0)
    swapped = [engine.containers.pop(container_name(each)) for each in (sandbox_id, ended)]
    for container, name in zip(swapped, map(container_name, (ended, sandbox_id)), strict=True):
        container.request = replace(container.request, name=name)
        engine.containers[name] = container
    testbed.isolation.refresh()
    assert testbed.rules.networks == frozenset()
    assert testbed.rules.sandboxes == {address}
