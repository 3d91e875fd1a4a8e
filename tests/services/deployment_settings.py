"""Settings of deployments. With `{}`, a deployment has the service's defaults."""

from typing import Protocol

# For tests: short leases, and short intervals between sweeps and between resyncs.
SHORTENED = {
    "AW_LEASE_SECONDS": "3",
    "AW_REPUBLISH_SECONDS": "1",
    "AW_SWEEP_SECONDS": "0.3",
    "AW_RESYNC_SECONDS": "3",
    "AW_HEARTBEAT_SECONDS": "1",
}
# For tests that wait for a LOST node. Others keep the default, so that a slow machine loses no node.
LOST_SOON = {"AW_NODE_LOST_SECONDS": "3"}
# Network rules and disks as by default, except addresses and sizes.
BOUNDED = {
    "AW_NETWORK_ISOLATION": "on",
    "AW_SANDBOX_DNS": "none",
    "AW_SANDBOX_DISK_BYTES": str(16 * 1024 * 1024),
}
# For drills that kill a process hundreds of times, and wait for its leases to expire each time.
SHORTEST = {
    "AW_LEASE_SECONDS": "1",
    "AW_REPUBLISH_SECONDS": "0.5",
    "AW_SWEEP_SECONDS": "0.3",
    "AW_RESYNC_SECONDS": "1",
    "AW_HEARTBEAT_SECONDS": "1",
    "AW_NODE_LOST_SECONDS": "2",
    "AW_STOP_SECONDS": "1",
    "AW_FIRST_MESSAGE_TIMEOUT_SECONDS": "0.2",
    # Drills remove the rows of deleted sandboxes, so a container that the engine creates late is unknown.
    "AW_QUARANTINE_SECONDS": "0",
}


class Engine(Protocol):
    """The addresses of a Docker Engine for a deployment's processes."""

    @property
    def host(self) -> str:
        """The URL of the engine's socket."""

    @property
    def gateway(self) -> str:
        """The address at which the engine's containers reach this machine."""

    @property
    def address(self) -> str:
        """The address of this machine at which only this engine's door listens."""

    @property
    def network(self) -> str:
        """The network of the engine's containers, as a CIDR; empty: docker0's."""


def engine_settings(engine: Engine) -> dict[str, str]:
    """The environment variables with the addresses of an engine."""
    return {
        "AW_DOCKER_HOST": engine.host,
        "AW_NODE_ADDRESS": engine.address,
        "AW_SANDBOX_ADDRESSES": engine.network,
        # Deployments share engines, and engines share the machine's addresses. Tests of firewall rules turn them on.
        "AW_NETWORK_ISOLATION": "off",
        # A test machine may have little space. Tests of disks set a size.
        "AW_SANDBOX_DISK_BYTES": "0",
        "AW_MIN_FREE_DISK_BYTES": "0",
    }
