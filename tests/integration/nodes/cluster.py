"""A deployment with two nodes, and what an operator does with them."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import update

from shared.clock import now
from shared.models import Node, NodeSpecBackoff, Sandbox
from shared.nodes import placement, spec_backoff
from shared.nodes import registry as node_registry
from shared.states import NodeStatus
from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.private_engine import PrivateEngine
from tests.waiting import eventually

A, B = "node-a", "node-b"
CAPACITY = 3


@dataclass(frozen=True)
class Cluster:
    """The service with its engines by their nodes' names; the worker of a node is a process of that name."""

    service: Deployment
    engines: dict[str, PrivateEngine]

    def address(self, name: str) -> str:
        """The address in the URLs of a node's sandboxes."""
        return self.engines[name].address

    def node(self, name: str) -> Node | None:
        """A node's row."""
        with self.service.database.reading() as session:
            return session.get(Node, name)

    def await_node(self, name: str, status: NodeStatus) -> Node:
        """A node's row once it has that status."""
        eventually(lambda: (self.node(name) or Node(id=name, status="", capacity=0)).status == status)
        found = self.node(name)
        assert found
        return found

    def node_of(self, sandbox_id: str) -> str | None:
        """Where the store says that a sandbox is."""
        with self.service.database.reading() as session:
            return session.get_one(Sandbox, sandbox_id).node_id

    def command(self, *arguments: str) -> None:
        """Type something, with success."""
        program = [str(Path(sys.executable).with_name("agent-workspace")), *arguments]
        subprocess.run(program, env=os.environ | self.service.environment, check=True, timeout=60)

    def change(self, act: Callable[..., None], name: str) -> None:
        """Cordon or uncordon a node."""
        with self.service.database.transaction() as session:
            act(session, name)

    def resting(self) -> list[NodeSpecBackoff]:
        """Which nodes get no more of which specs now."""
        with self.service.database.reading() as session:
            return spec_backoff.resting(session)

    def end_rests(self) -> None:
        """Let the time pass that they rest."""
        with self.service.database.transaction() as session:
            session.execute(update(NodeSpecBackoff).values(rests_until=now()))

    def status_of(self, sandbox_id: str) -> str:
        """What the store says of a sandbox, deleted or not."""
        with self.service.database.reading() as session:
            return session.get_one(Sandbox, sandbox_id).status

    def forget(self, name: str) -> None:
        """Let the time pass after which a node can be forgotten, and forget it."""
        with self.service.database.transaction() as session:
            session.get_one(Node, name).heartbeat_at -= placement.HEARTBEAT_LIMIT
        self.change(node_registry.forget, name)

    def found(self) -> dict[str, list[str]]:
        """The ids of the sandboxes that each engine has a container for."""
        return {name: sorted(n.removeprefix("aw-") for n in e.containers()) for name, e in self.engines.items()}


def start_many(alice: Client, count: int) -> list[str]:
    """So many sandboxes that run."""
    ids = [alice.start_sandbox() for _ in range(count)]
    for sandbox_id in ids:
        alice.await_sandbox(sandbox_id, "RUNNING")
    return ids


def url_of(found: dict[str, Any]) -> str:
    """Where a sandbox's agent server is, as the API says."""
    (url,) = [str(url["url"]) for url in found["exposed_urls"] if url["name"] == "AGENT_SERVER"]
    return url
