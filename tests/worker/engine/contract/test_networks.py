"""The network of an installation's containers."""

import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from shared.ids import new_id
from tests.fakes.engine import FakeEngine
from tests.fixtures.containers import started
from tests.services.slots import is_unused, taken_slot
from worker.engine.docker_engine import INSTALLATION_LABEL
from worker.engine.protocol import (
    ContainerRequest,
    ContainerState,
    Engine,
    EngineFailing,
    EngineRefused,
    NetworkEndpoint,
    NetworkRequest,
)


@pytest.fixture
def network(installation: str) -> Iterator[NetworkRequest]:
    with taken_slot(lambda slot: is_unused(slot.network)) as slot:
        name = f"agent-workspace-test-{new_id()[:8]}"
        labels = {INSTALLATION_LABEL: installation}
        yield NetworkRequest(name, f"br-aw{new_id()[:8]}", str(slot.network), slot.gateway, labels)
        subprocess.run(["docker", "network", "rm", name], check=False, capture_output=True)


@pytest.fixture
def filtered_network(network: NetworkRequest) -> NetworkRequest:
    """The network of the test, which the filter permits."""
    return network


def test_containers_have_an_address_in_the_network_while_they_run(
    engine: Engine, request_: ContainerRequest, network: NetworkRequest, installation: str
) -> None:
    for _ in range(2):  # safe to repeat
        engine.ensure_network(network)
    name = started(engine, replace(request_, network=NetworkEndpoint(network.name, network.gateway)))
    try:
        [address] = engine.observe(name).networks.values()
        assert list(engine.observe(name).networks) == [network.name]
        assert address
        [listed] = engine.list_containers(installation)
        assert listed.networks == {network.name: address}
        engine.stop(name, 0)
        assert engine.observe(name).networks == {network.name: ""}
    finally:
        engine.remove(name)


@pytest.mark.parametrize("stops_before", [True, False])
def test_disconnected_container_has_no_network_and_gets_none_at_its_next_start(
    engine: Engine, request_: ContainerRequest, network: NetworkRequest, *, stops_before: bool
) -> None:
    engine.ensure_network(network)
    request = replace(request_, network=NetworkEndpoint(network.name, network.gateway))
    engine.create(request)
    try:
        assert engine.observe(request.name).networks == {network.name: ""}
        engine.start(request.name)
        if stops_before:
            engine.stop(request.name, 0)
        disconnect(engine, network, request.name)
        engine.stop(request.name, 0)
        assert engine.observe(request.name).networks == {}
        engine.start(request.name)
        found = engine.observe(request.name)
        assert (found.state, found.networks, found.address) == (ContainerState.RUNNING, {}, "")
    finally:
        engine.remove(request.name)


def disconnect(engine: Engine, network: NetworkRequest, name: str) -> None:
    if isinstance(engine, FakeEngine):
        engine.containers[name].is_disconnected = True
        return
    command = ["docker", "network", "disconnect", "-f", network.name, name]
    subprocess.run(command, check=True, capture_output=True)


def test_container_whose_network_was_removed_fails_with_the_reason(
    engine: Engine, request_: ContainerRequest, network: NetworkRequest
) -> None:
    """`docker network prune` removes a network whose containers are all stopped."""
    engine.ensure_network(network)
    request = replace(request_, network=NetworkEndpoint(network.name, network.gateway))
    name = started(engine, request)
    try:
        engine.stop(name, 0)
        remove_network(engine, network)
        for _ in range(2):  # without the network, and with another one of that name
            with pytest.raises(EngineFailing, match=r"network \S+ not found"):
                engine.start(name)
            assert engine.observe(name).has_lost_network
            engine.ensure_network(network)
        engine.remove_container(name)
        assert started(engine, request) == name
        assert not engine.observe(name).has_lost_network
    finally:
        engine.remove(name)


def remove_network(engine: Engine, network: NetworkRequest) -> None:
    if not isinstance(engine, FakeEngine):
        subprocess.run(["docker", "network", "rm", network.name], check=True, capture_output=True)
        return
    del engine.networks[network.name]
    for container in engine.containers.values():
        container.is_cut_off = True


def test_network_with_other_addresses_is_refused(engine: Engine, network: NetworkRequest) -> None:
    engine.ensure_network(network)
    other = replace(network, subnet="10.250.250.0/24", gateway="10.250.250.1")
    with pytest.raises(EngineRefused, match="addresses"):
        engine.ensure_network(other)
