"""Checks of a node's machine for `agent-workspace doctor`: the engine, and what the sandboxes' limits require."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

from shared.cli.checks.finding import Finding
from shared.settings import Settings
from worker.engine import kernel_limits
from worker.engine.disk_engine import DiskEngine
from worker.engine.protocol import DiskKind, EngineError
from worker.engine.requirements import find_disk_shortage, require_runtimes
from worker.network.addresses import make_bridge
from worker.network.firewall import FilteredFirewall, FirewallError, LocalFirewall
from worker.settings import WorkerSettings

PROGRAM_PATHS = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
# Fields of Docker's `GET /info`, each a limit that the control groups of the machine must offer.
LIMITS = {"MemoryLimit": "memory", "CpuCfsQuota": "CPU", "PidsLimit": "processes"}


def check_machine() -> Iterator[Finding]:
    """Check the engine that `AW_DOCKER_HOST` names, and whether this machine can limit sandboxes."""
    shared, settings = Settings(), WorkerSettings()
    engine = DiskEngine(settings.docker_host, "doctor", settings.engine_data_dir)
    try:
        engine.read_id()
    except EngineError as error:
        fix = "`systemctl start docker`; or let this user use its socket (`usermod -aG docker USER`)"
        yield Finding("engine", f"{settings.docker_host}: {error}", f"{fix}; or correct AW_DOCKER_HOST")
    else:
        yield from _check_engine(engine, settings)
    finally:
        engine.close()
    yield _check_kernel_limits()
    yield _check_firewall(shared, settings)
    yield _check_program("door", "haproxy", "haproxy")
    if shared.network_isolation:
        yield _check_program("egress proxy", "squid", "squid")
        yield _check_program("closing connections", "ss", "iproute2")


def _check_engine(engine: DiskEngine, settings: WorkerSettings) -> Iterator[Finding]:
    info = engine.info
    yield Finding("engine", found=f"version {info.get('ServerVersion')}, {settings.docker_host}")
    yield _check_limits(info)
    has_seccomp = any("seccomp" in option for option in info.get("SecurityOptions") or ())
    yield Finding("seccomp", None if has_seccomp else "the engine has none", "use a kernel and an engine with seccomp")
    yield _check_runtimes(engine, settings)
    lack = find_disk_shortage(engine, settings.min_free_disk_bytes)
    yield Finding("free disk", lack, "delete sandboxes, or unused images (`docker image prune`); or lower the floor")
    if settings.sandbox_disk_bytes:
        yield _check_disks(engine)


def _check_limits(info: dict[str, Any]) -> Finding:
    missing = [name for field, name in LIMITS.items() if not info.get(field)]
    problem = f"the machine can't limit {', '.join(missing)}" if missing else None
    fix = "enable the control groups: a kernel with cgroup v2, mounted on /sys/fs/cgroup"
    return Finding("control groups", problem, fix, f"version {info.get('CgroupVersion')}")


def _check_runtimes(engine: DiskEngine, settings: WorkerSettings) -> Finding:
    try:
        require_runtimes(engine, settings.runtimes)
    except EngineError as error:
        return Finding("runtimes", str(error), "add them to the engine, or correct AW_ALLOWED_RUNTIMES")
    return Finding("runtimes", found=", ".join(sorted(settings.runtimes)) or "the engine's default")


def _check_disks(engine: DiskEngine) -> Finding:
    try:
        kind = engine.disk_kind()
    except EngineError as error:
        return Finding("disks", str(error), "repair the engine or the engine filter")
    fix = "run the service as root, with `losetup` and `mke2fs` (apt-get install e2fsprogs mount) and loop devices"
    problem = "sandboxes get no disk of their own: what they write has no limit" if kind is DiskKind.PLAIN else None
    return Finding("disks", problem, f"{fix}; or accept it with AW_SANDBOX_DISK_BYTES=0", "limited")


def _check_kernel_limits() -> Finding:
    low = kernel_limits.find_low()
    found = ", ".join(f"{each.name} is {' '.join(map(str, each.found))}" for each in low)
    problem = f"one sandbox can use up what all share: {found}" if low else None
    fix = f"start the service as root; or {kernel_limits.fix_command(low)}; see docs/operate/nodes.md#kernel-limits"
    return Finding("kernel limits", problem, fix, "above those of the sandboxes")


def _check_firewall(shared: Settings, settings: WorkerSettings) -> Finding:
    if not shared.network_isolation:
        return Finding("network rules", found="AW_NETWORK_ISOLATION is off")
    try:
        if os.geteuid() == 0:
            LocalFirewall(make_bridge(shared, "doctor", settings.node)).read()
        else:
            FilteredFirewall(settings.docker_host).read()
    except FirewallError as error:
        fix = "`apt-get install nftables`; run the service as root; or read docs/operate/network.md"
        return Finding("network rules", str(error), fix)
    return Finding("network rules", found="nftables work")


def _check_program(name: str, program: str, package: str) -> Finding:
    missing = shutil.which(program, path=PROGRAM_PATHS) is None
    return Finding(name, f"{program} is missing" if missing else None, f"`apt-get install {package}`", program)
