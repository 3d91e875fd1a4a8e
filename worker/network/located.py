"""The addresses of a node's sandboxes, as its engine reports them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from worker.engine.docker_engine import INSTALLATION_LABEL, SANDBOX_LABEL, own_name
from worker.engine.protocol import (
    ContainerStatus,
    ContainerSummary,
    Engine,
    EngineError,
    NetworkRequest,
    has_responded,
)
from worker.network.proxy import PROXY_LABEL

log = structlog.get_logger()

# After this many observations without a response the engine is asked for no more.
MAX_SILENT = 2


class SandboxAddress(NamedTuple):
    """The address of a sandbox, and whether its environment names the proxy."""

    address: str
    uses_proxy: bool


@dataclass(frozen=True)
class SandboxAddresses:
    """Where sandboxes are.

    Args:
        known: the sandboxes with an address; no two have the same.
        unknown: the sandboxes that could not be observed, and their addresses in the list.
    """

    known: Mapping[str, SandboxAddress] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)


def locate(
    engine: Engine, network: str, listed: Mapping[str, ContainerSummary], runs: Mapping[str, bool]
) -> SandboxAddresses:
    """Find the sandboxes that have an address in the network.

    Docker lists a container's new state once it has written it to its disk. While that is full, lists are outdated: a
    container that has ended keeps its address there, and another one may have got it. So a container is observed if its
    entry in the list contradicts the database, or if another container has the same address.

    Args:
        listed: the engine's list, by sandbox.
        runs: whether the container runs or is paused according to the database, by sandbox. Others are left out.
    """
    entries = {sandbox_id: each for sandbox_id, each in listed.items() if sandbox_id in runs}
    located = {sandbox_id: _read(network, each) for sandbox_id, each in entries.items()}
    doubtful = {sandbox_id for sandbox_id, each in located.items() if bool(each.address) != runs[sandbox_id]}
    observed: dict[str, SandboxAddress | None] = {}
    while doubtful := (doubtful | _sharing(located)) - observed.keys():
        found = {sandbox_id: entries[sandbox_id] for sandbox_id in sorted(doubtful)}
        # By their own names: what has their present ones may be another's when they are observed.
        names = {sandbox_id: own_name(each.labels, each.name) for sandbox_id, each in found.items()}
        observed |= _observe(engine, network, names)
        located |= {sandbox_id: each for sandbox_id, each in observed.items() if each is not None}
    unknown = {sandbox_id for sandbox_id, each in observed.items() if each is None} | _sharing(located)
    return SandboxAddresses(
        {sandbox_id: each for sandbox_id, each in located.items() if each.address and sandbox_id not in unknown},
        {sandbox_id: located[sandbox_id].address for sandbox_id in unknown},
    )


def by_sandbox(listed: Iterable[ContainerSummary]) -> dict[str, ContainerSummary]:
    return {each.labels[SANDBOX_LABEL]: each for each in listed if SANDBOX_LABEL in each.labels}


def find_next(
    engine: Engine, network: NetworkRequest, address: str, sandbox_id: str
) -> tuple[str, SandboxAddress] | None:
    """The other sandbox whose container has the address, according to the engine's list; no address: None."""
    listed = by_sandbox(engine.list_containers(network.labels[INSTALLATION_LABEL])) if address else {}
    others = ((other, _read(network.name, each)) for other, each in listed.items() if other != sandbox_id)
    return next((found for found in others if found[1].address == address), None)


def _sharing(located: Mapping[str, SandboxAddress]) -> set[str]:
    """The sandboxes whose address another one has, too."""
    uses = Counter(each.address for each in located.values() if each.address)
    return {sandbox_id for sandbox_id, each in located.items() if uses[each.address] > 1}


def _observe(engine: Engine, network: str, names: Mapping[str, str]) -> dict[str, SandboxAddress | None]:
    """Observe these containers; None: the engine can't say. One hanging container must not delay all others."""
    observed: dict[str, SandboxAddress | None] = dict.fromkeys(names)
    silent = 0
    for sandbox_id, name in names.items():
        try:
            observed[sandbox_id] = _read(network, engine.observe(name))
        except EngineError as error:
            log.warning("address_unknown", sandbox=sandbox_id, error=str(error))
            silent += not has_responded(error)
        if silent == MAX_SILENT:
            break
    return observed


def _read(network: str, container: ContainerStatus | ContainerSummary) -> SandboxAddress:
    return SandboxAddress(container.networks.get(network, ""), PROXY_LABEL in container.labels)
