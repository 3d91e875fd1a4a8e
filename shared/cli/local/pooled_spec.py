"""A spec as commands print it: texts for people, and its stored values for programs."""

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.cli.local.quantities import show_duration, show_size

if TYPE_CHECKING:
    from shared.models import SandboxSpec

DURATIONS = ("freeze_after_seconds", "stop_after_seconds", "delete_after_seconds", "max_age_seconds")
STORED = ("command", "memory_bytes", "cpus", "pids", "disk_bytes", "working_dir", "runtime", "ports", "capabilities")


@dataclass(frozen=True)
class PooledSpec:
    """A spec, and the numbers of ready and of booting sandboxes in its warm pool."""

    spec: "SandboxSpec"
    ready: int
    booting: int

    @property
    def details(self) -> dict[str, Any]:
        """The values for people, by column name."""
        spec = self.spec
        return {
            "image": spec.id,
            "command": shlex.join(spec.command) if spec.command else "the image's own",
            "memory MB": spec.memory_bytes // 1024**2,
            "cpus": spec.cpus,
            "pids": spec.pids,
            "disk": show_size(spec.disk_bytes),
            "working dir": spec.working_dir,
            "runtime": spec.runtime or "the engine's default",
            "ports": " ".join(f"{name}={number}" for name, number in spec.ports.items()),
            "capabilities": " ".join(spec.capabilities),
            "environment": " ".join(sorted(spec.env)),  # names only: a value may be a secret
            "warm": self._pool_text(),
            "wake": spec.wake_on_traffic,
            "egress": spec.egress.replace(",", " "),
            "freeze": show_duration(spec.freeze_after_seconds),
            "stop": show_duration(spec.stop_after_seconds),
            "delete": show_duration(spec.delete_after_seconds),
            "max age": show_duration(spec.max_age_seconds),
        }

    @property
    def document(self) -> dict[str, Any]:
        """The values for programs: sizes in bytes, times in seconds, None for a default or no limit."""
        spec = self.spec
        return {
            "image": spec.id,
            **{name: getattr(spec, name) for name in STORED},
            "environment": sorted(spec.env),  # names only
            "warm": {"ready": self.ready, "booting": self.booting, "target": spec.warm_target, "max": spec.warm_most}
            | {"detail": spec.warm_detail},
            "wake_on_traffic": spec.wake_on_traffic,
            "egress": spec.egress.split(","),
            **{name: getattr(spec, name) for name in DURATIONS},
        }

    def _pool_text(self) -> str:
        spec = self.spec
        if not (spec.warm_target or self.ready or self.booting):
            return "none"
        problem = f": {spec.warm_detail}" if spec.warm_detail else ""
        return f"{self.ready} of {spec.warm_target}, {self.booting} booting, at most {spec.warm_most}{problem}"
