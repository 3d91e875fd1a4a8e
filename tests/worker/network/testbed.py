"""A node with an engine and a firewall in memory, and a worker that uses its isolation."""

import itertools
from dataclasses import dataclass, replace

from tests.fakes.engine import FakeEngine
from tests.fakes.firewall import FakeFirewall
from worker.context import WorkerContext
from worker.network.isolation import NetworkIsolation
from worker.network.rules import Allowed
from worker.sandboxes.container_spec import container_name


@dataclass(frozen=True)
class NetworkTestbed:
    """The parts of the node."""

    bare: WorkerContext
    engine: FakeEngine
    firewall: FakeFirewall
    isolation: NetworkIsolation

    @property
    def context(self) -> WorkerContext:
        """The worker's context, with the isolation."""
        impaired = [lambda: self.isolation.impairment]
        return replace(
            self.bare, network=self.isolation, node_checks=[self.isolation.check], impairment_checks=impaired
        )

    @property
    def rules(self) -> Allowed:
        """The current rules of the firewall."""
        assert self.firewall.allowed is not None
        return self.firewall.allowed

    def address(self, sandbox_id: str) -> str:
        """The sandbox's address."""
        return self.engine.containers[container_name(sandbox_id)].address

    def reuse_addresses(self) -> None:
        """Give the next container the first free address, as Docker does."""
        self.engine._addresses = itertools.count(1)

    def end_container(self, sandbox_id: str) -> None:
        """End a sandbox's container without the worker, so that the next container gets its address."""
        name = container_name(sandbox_id)
        self.engine.stop(name, 0)
        self.engine.containers[name].address = ""
        self.reuse_addresses()
