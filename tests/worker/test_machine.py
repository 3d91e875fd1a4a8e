"""The findings of `doctor` on a node's machine."""

from pathlib import Path
from typing import Any

import pytest

from shared.cli.checks.finding import Finding
from worker import machine
from worker.engine.disk_engine import DiskEngine
from worker.engine.kernel_limits import LowLimit
from worker.engine.protocol import DiskKind, EngineUnavailable

HEALTHY: dict[str, Any] = {
    "ServerVersion": "28",
    "CgroupVersion": "2",
    "MemoryLimit": True,
    "CpuCfsQuota": True,
    "PidsLimit": True,
    "SecurityOptions": ["name=seccomp,profile=builtin"],
    "Runtimes": {"runc": {}},
    "ID": "x",
    "DockerRootDir": "/var/lib/docker",
}


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # there is no var/env here
    monkeypatch.setenv("AW_NETWORK_ISOLATION", "off")
    (tmp_path / "haproxy").touch(mode=0o755)
    monkeypatch.setattr("worker.machine.PROGRAM_PATHS", str(tmp_path))
    monkeypatch.setattr("worker.machine.kernel_limits.find_low", list)


def examine(
    monkeypatch: pytest.MonkeyPatch, *, disks: DiskKind = DiskKind.IMAGE, free: int = 2**40, **info: Any
) -> list[Finding]:
    """The findings on a machine whose engine describes itself like this."""

    def read_id(engine: DiskEngine) -> str:
        engine.info = HEALTHY | info
        return "x"

    monkeypatch.setattr(DiskEngine, "read_id", read_id)
    monkeypatch.setattr(DiskEngine, "disk_kind", lambda _: disks)
    monkeypatch.setattr(DiskEngine, "free_bytes", lambda _: free)
    return list(machine.check_machine())


def wrong(findings: list[Finding]) -> list[str]:
    assert all(finding.fix for finding in findings if finding.problem)
    return [finding.name for finding in findings if finding.problem]


def test_healthy_machine_has_no_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    found = examine(monkeypatch)
    assert wrong(found) == []
    assert len(found) == 9


def test_engine_that_does_not_respond_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_engine: DiskEngine) -> str:
        raise EngineUnavailable("refused")

    monkeypatch.setattr(DiskEngine, "read_id", refuse)
    monkeypatch.setattr("worker.machine.PROGRAM_PATHS", "")
    findings = list(machine.check_machine())
    assert wrong(findings) == ["engine", "door"]
    assert findings[0].problem == "unix:///var/run/docker.sock: refused"


def test_all_missing_requirements_of_an_engine_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_ALLOWED_RUNTIMES", "runsc")
    found = examine(monkeypatch, disks=DiskKind.PLAIN, free=1, PidsLimit=False, SecurityOptions=None)
    assert wrong(found) == ["control groups", "seccomp", "runtimes", "free disk", "disks"]


def test_low_limits_of_the_kernel_are_found_with_the_command_that_raises_them(monkeypatch: pytest.MonkeyPatch) -> None:
    low = [LowLimit("kernel.pid_max", (4096,), (65536,)), LowLimit("net.ipv4.tcp_mem", (1, 2, 3), (4, 5, 6))]
    monkeypatch.setattr("worker.machine.kernel_limits.find_low", lambda: low)
    [finding] = [finding for finding in examine(monkeypatch) if finding.problem]
    assert finding.name == "kernel limits"
    assert "kernel.pid_max is 4096, net.ipv4.tcp_mem is 1 2 3" in str(finding.problem)
    assert "sysctl -w kernel.pid_max=65536 'net.ipv4.tcp_mem=4 5 6'" in finding.fix


def test_firewall_that_cannot_be_used_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_NETWORK_ISOLATION", "on")
    monkeypatch.setattr("worker.network.firewall.PATHS", "")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert wrong(examine(monkeypatch)) == ["network rules", "egress proxy", "closing connections"]
