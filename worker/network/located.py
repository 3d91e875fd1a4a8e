"""The addresses of a node's sandboxes, as its engine states them."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from worker.engine.docker_engine import SANDBOX_LABEL
from worker.engine.protocol import ContainerStatus, ContainerSummary, Engine
from worker.network.proxy import PROXY_LABEL


class Located(NamedTuple):
    """The address of a sandbox, and whether its environment names the proxy."""

    address: str
    uses_proxy: bool


def locate(
    engine: Engine, network: str, listed: Mapping[str, ContainerSummary], runs: Mapping[str, bool]
) -> dict[str, Located]:
    """Find the sandboxes that have an address in the network.

    Docker lists a container's new state once it has written it to its disk. While that is full, lists are outdated: a
    container that has ended keeps its address there, and another one may have got it. So a container is observed if its
    entry in the list contradicts the database, or if another entry has the same address.

    Args:
        engine: the engine that made the list.
        network: the name of the network.
        listed: the engine's list, by sandbox.
        runs: whether the container runs or is paused according to the database, by sandbox. Others are left out.

    Raises:
        EngineError: a container cannot be observed.
    """
    found = {sandbox_id: each for sandbox_id, each in listed.items() if sandbox_id in runs}
    uses = Counter(each.networks.get(network, "") for each in found.values())
    located = {}
    for sandbox_id, each in found.items():
        address = each.networks.get(network, "")
        is_doubtful = bool(address) != runs[sandbox_id] or (address and uses[address] > 1)
        located[sandbox_id] = _read(network, engine.observe(each.name) if is_doubtful else each)
    return {sandbox_id: each for sandbox_id, each in located.items() if each.address}


def by_sandbox(listed: list[ContainerSummary]) -> dict[str, ContainerSummary]:
    """The containers of a list by their sandboxes."""
    return {each.labels[SANDBOX_LABEL]: each for each in listed if SANDBOX_LABEL in each.labels}


def _read(network: str, container: ContainerStatus | ContainerSummary) -> Located:
    return Located(container.networks.get(network, ""), PROXY_LABEL in container.labels)
