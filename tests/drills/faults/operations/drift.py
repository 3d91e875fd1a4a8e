"""Outside changes to a container, and to a node's firewall."""

from collections.abc import Mapping

from shared.states import Status
from tests.drills.engine_listing import INSTALLATION_LABEL, NAME_PREFIX, SANDBOX_LABEL, sandbox_name
from tests.drills.faults.operation import Operation, routine
from tests.drills.faults.operations.sandbox import fragile, running
from tests.drills.faults.runner import Runner
from tests.services.engine import TINY_IMAGE

STATUS_CHECKS = frozenset({"status_checks"})


def _kill_container(runner: Runner, sandbox_id: str) -> None:
    runner.engine.docker("kill", sandbox_name(sandbox_id))


def _deleted(runner: Runner) -> str:
    """A deleted sandbox."""
    sandbox_id = running(runner)
    runner.client.delete(sandbox_id)
    runner.await_status(sandbox_id, Status.DELETED)
    return sandbox_id


def leave_container(runner: Runner, sandbox_id: str) -> None:
    """Create a container and a volume of a sandbox that owns none any more."""
    name = sandbox_name(sandbox_id)
    labels = {INSTALLATION_LABEL: runner.service.installation, SANDBOX_LABEL: name.removeprefix(NAME_PREFIX)}
    flags = [word for key, value in labels.items() for word in ("--label", f"{key}={value}")]
    runner.engine.docker("volume", "create", *flags, name)
    runner.engine.docker("create", "--name", name, *flags, TINY_IMAGE)


def _flush_rules(runner: Runner, _sandbox_id: str) -> None:
    runner.bounds.flush_rules()


OPERATIONS: Mapping[str, Operation] = {
    "resync-of-a-stopped-container": routine("resync", prepare=fragile, act=_kill_container, owns=STATUS_CHECKS),
    "resync-of-an-orphan": routine("resync", prepare=_deleted, act=leave_container),
    "network-without-rules": routine("network", prepare=running, act=_flush_rules),
    "events": routine("events", prepare=fragile, act=_kill_container, owns=STATUS_CHECKS),
}
