"""The network of a node's sandboxes, as the rest of the worker uses it."""

import structlog

from shared.models import Sandbox
from worker.engine.protocol import ContainerStatus, EngineUnavailable, NetworkEndpoint

log = structlog.get_logger()


class Isolation:
    """The network of a node's sandboxes. Here, as for AW_NETWORK_ISOLATION=off: the engine's own bridge, without rules.

    FirewallError of `admit`, `renew` and `revoke`: they can't write the rules.
    """

    @property
    def endpoint(self) -> NetworkEndpoint | None:
        """The network of new containers; None: the engine's own bridge."""
        return None

    @property
    def impairment(self) -> str | None:
        """What sandboxes cannot reach, although the node takes new ones; None if nothing is missing."""
        return None

    def find_route_problem(self) -> str | None:
        """Why this machine cannot reach its sandboxes, so that their silence is no failure; None: it can."""
        return None

    def reaches(self, address: str) -> bool:
        """Whether the kernel at a running sandbox's address responds, whatever the programs in the sandbox do."""
        return True

    def check(self) -> str | None:
        """Return why the node takes no new sandboxes; None if it takes them."""
        return None

    def require_rules(self, sandbox: Sandbox) -> None:
        """Check that a container may start. The next `admit` writes all its rules.

        Raises:
            FirewallError: its rules would be missing, or the egress proxy that its spec needs is down.
        """

    def admit(self, sandbox: Sandbox, observed: ContainerStatus) -> None:
        """Allow a running sandbox what its spec and its owner's settings say."""

    def renew(self, sandbox: Sandbox) -> None:
        """Admit a sandbox again that was admitted before, because its owner's settings may have changed just now."""

    def revoke(self, sandbox: Sandbox, observed: ContainerStatus, *, has_ended: bool = False) -> None:
        """Revoke what the address of a stopped or removed container was allowed.

        Args:
            has_ended: the container may have ended since it was observed, and another one may have its address.
        """

    def revoke_early(self, sandbox: Sandbox, observed: ContainerStatus) -> None:
        """Revoke before the container's removal, which frees the address: another worker's sandbox may get it at once.

        A firewall that fails must not keep the container. Until the removal, a resync may allow the address again. So
        `revoke` follows in any case.
        """
        try:
            self.revoke(sandbox, observed)
        except EngineUnavailable as error:
            log.warning("not_revoked", sandbox=sandbox.id, error=str(error))

    def refresh(self) -> bool:
        """Compare network and rules with database and engine, and correct them.

        Returns:
            Whether the result of `check` has changed.
        """
        return False
