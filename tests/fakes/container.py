"""A container of the in-memory engine."""

import json
from dataclasses import dataclass, field
from typing import Any

from worker.engine.protocol import ContainerRequest, ContainerState


@dataclass
class FakeContainer:
    """One container, and the configuration of its agent server."""

    request: ContainerRequest
    state: ContainerState = ContainerState.CREATED
    exit_code: int = 0
    oom_killed: bool = False
    # In the sandboxes' network; empty before the first start.
    address: str = ""
    is_published: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    @property
    def session_key(self) -> str | None:
        """Key in its agent server's configuration; None if the server awaits deferred init."""
        keys = self._configuration.get("session_api_keys")
        return str(keys[0]) if keys else None

    @property
    def boot_key(self) -> str | None:
        """Key for the deferred init of its agent server; None if the server awaits none."""
        return str(self._configuration["secret_key"]) if self._configuration.get("deferred_init") else None

    @property
    def _configuration(self) -> dict[str, Any]:
        return next(map(json.loads, self.files.values()), {})
