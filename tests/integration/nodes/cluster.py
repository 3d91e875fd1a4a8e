"""A deployment with two nodes, and the operator's actions on them."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import update

from shared.clock import now
from shared.models import Node, NodeSpecBackoff, Sandbox
from shared.nodes import placement
from shared.nodes import registry as node_registry
from shared.sandboxes.status import agent_server
from shared.states import NodeStatus
from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.private_engine import PrivateEngine
from tests.waiting import eventually

A, B = "node-a", "node-b"
CAPACITY = 3


@dataclass(frozen=True)
class Cluster:
    """The service with its engines by node name. The worker of a node is the process with that name."""

    service: Deployment
    engines: dict[str, PrivateEngine]

    def address(self, name: str) -> str:
        """The address of a node's door."""
        return self.engines[name].address

    def node(self, name: str) -> Node | None:
        """A node's row."""
        with self.service.database.reading() as session:
            return session.get(Node, name)

    def await_node(self, name: str, status: NodeStatus) -> Node:
        """Wait until a node has that status, and return its row."""
        eventually(lambda: (self.node(name) or Node(id=name, status="", capacity=0)).status == status)
        found = self.node(name)
        assert found
        return found

    def node_of(self, sandbox_id: str) -> str | None:
        """The node of a sandbox in the store."""
        with self.service.database.reading() as session:
            return session.get_one(Sandbox, sandbox_id).node_id

    def command(self, *arguments: str) -> None:
        """Run an `agent-workspace` command that must succeed."""
        program = [str(Path(sys.executable).with_name("agent-workspace")), *arguments]
        subprocess.run(program, env=os.environ | self.service.environment, check=True, timeout=60)

    def change(self, act: Callable[..., None], name: str) -> None:
        """Cordon or uncordon a node."""
        with self.service.database.transaction() as session:
            act(session, name)

    def backoffs(self) -> list[NodeSpecBackoff]:
        """The pairs of a node and a spec that are backed off now."""
        with self.service.database.reading() as session:
            return placement.open_breakers(session)

    def end_backoffs(self) -> None:
        """Move the end of all backoffs to now."""
        with self.service.database.transaction() as session:
            session.execute(update(NodeSpecBackoff).values(backoff_until=now()))

    def status_of(self, sandbox_id: str) -> str:
        """The status of a sandbox in the store, deleted or not."""
        with self.service.database.reading() as session:
            return session.get_one(Sandbox, sandbox_id).status

    def door_of(self, sandbox_id: str) -> str:
        """The host of the door in the row's URL of a sandbox's agent server."""
        with self.service.database.reading() as session:
            url = agent_server(session.get_one(Sandbox, sandbox_id).exposed_urls)
        return urlsplit(url or "").hostname or ""

    def delete_node(self, name: str) -> None:
        """Age a node's heartbeat to the limit after which a node can be deleted, and delete the node."""
        with self.service.database.transaction() as session:
            session.get_one(Node, name).heartbeat_at -= placement.HEARTBEAT_LIMIT
        self.change(node_registry.forget, name)

    def found(self) -> dict[str, list[str]]:
        """The ids of the sandboxes with a container, by engine."""
        return {name: sorted(n.removeprefix("aw-") for n in e.containers()) for name, e in self.engines.items()}


def start_many(alice: Client, count: int) -> list[str]:
    """Start that number of sandboxes, and wait until they run."""
    ids = [alice.start_sandbox() for _ in range(count)]
    for sandbox_id in ids:
        alice.await_sandbox(sandbox_id, "RUNNING")
    return ids


def url_of(found: dict[str, Any]) -> str:
    """The URL of a sandbox's agent server, as the API shows it."""
    (url,) = [str(url["url"]) for url in found["exposed_urls"] if url["name"] == "AGENT_SERVER"]
    return url
