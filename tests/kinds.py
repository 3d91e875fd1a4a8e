"""The kind of a test, by its fixtures and its folder: marks are automatic, so that none is missing."""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

# The values of the fixture parameters that select a database.
DATABASES = ("sqlite", "postgresql")
DATABASE_PARAMETER = re.compile(rf"(?<=[\[-])({'|'.join(DATABASES)})(?=[\]-])")
KINDS = {
    "unit": "needs no Docker Engine",
    "real": "needs an engine, sandboxes or the service's processes",
    "drill": "kills processes at failpoints",
    "chaos": "breaks everything at random, alone on the machine",
}
OTHER_MARKS = {
    "nightly": "takes too long for each change; --thorough selects it",
    "no_rerun": "never run again after a failure: a race that it finds once is a finding",
    "own_database": "needs a database that no other test has used",
}
CHAOS = "tests/drills/chaos/test_chaos.py"
DRILL_FIXTURES = {"lanes"}
REAL_FOLDERS = (
    "tests/integration/",
    "tests/isolation/network/",
    "tests/isolation/test_containers.py",
    "tests/isolation/test_shared_limits.py",
    "tests/isolation/test_surroundings.py",
    "tests/clients/",
    "tests/cluster/",
    "tests/browser/",
    "tests/deploy/monitoring/",
    "tests/bench/test_bench.py",
    "tests/services/test_loop_devices.py",
    "tests/worker/engine/test_disks.py",
)
REAL_FIXTURES = {"dedicated_engine", "site", "sandbox_url"}
# Fixtures that return a type from one of these modules need an engine, whatever their names are.
REAL_MODULES = (
    *(f"tests.services.{name}." for name in ("agent_servers", "client", "deployment", "engine", "engine_proxy")),
    *(f"tests.services.{name}." for name in ("machine_engine", "private_engine", "registry")),
    "tests.clients.",
    "tests.integration.",
    "tests.isolation.testbed.",
    "tests.isolation.network.",
    "worker.engine.",
)
# Fixtures that listen on the bridge, where sandboxes reach them, even for a fake that sends them no requests.
ON_THE_BRIDGE = {"contract_model", "receiver"}
# Prefixes of parameters that need an engine: of fixtures like `params=["fake", "docker"]`, or the names of our images.
REAL_PARAMETERS = ("docker", "real", "tiny", "agent-workspace/")
# All tests with one of these fixtures, or with a fixture of a type from this module, share one agent server per image.
AGENT_SERVERS = {"sandbox_url", "tiny_url"} | ON_THE_BRIDGE
AGENT_SERVERS_MODULE = "tests.services.agent_servers."
# Drills, and tests of nodes, of durability and of interleavings.
NO_RERUN = (
    "tests/api/test_crowded_rows.py",
    "tests/api/test_locked_rows.py",
    "tests/drills/",
    "tests/integration/nodes/",
    "tests/integration/test_agent_reports.py",
    "tests/integration/test_backup.py",
    "tests/integration/test_database_down.py",
    "tests/integration/test_earlier_code.py",
    "tests/integration/test_engine_in_trouble.py",
    "tests/integration/test_faults.py",
    "tests/integration/test_old_and_new.py",
    "tests/integration/test_reboot.py",
    "tests/integration/test_rolling_restart.py",
    "tests/integration/test_truth.py",
    "tests/shared/backup/",
    "tests/shared/cli/test_backups.py",
    "tests/shared/nodes/",
    "tests/shared/queue/test_kombu_patches.py",
    "tests/worker/backup/",
    "tests/worker/conversations/test_start_interruptions.py",
    "tests/worker/locks/",
    "tests/worker/loops/failover/",
    "tests/worker/loops/test_cut_off_node.py",
    "tests/worker/loops/test_dead_workers.py",
    "tests/worker/network/test_concurrent_admission.py",
    "tests/worker/sandboxes/reconciler/test_concurrent_changes.py",
    "tests/worker/test_interleavings.py",
)
# And all tests of files that import one of these: tests of interleavings and of properties.
NO_RERUN_IMPORTS = re.compile(r"^\s*(from|import) (tests\.interleaving|hypothesis|schemathesis)\b", re.MULTILINE)
# Caches the kind of a test, which is needed several times for each of ten thousand tests.
_KIND = pytest.StashKey[str]()


def kind_of(item: pytest.Item) -> str:
    """The mark of a test."""
    if _KIND not in item.stash:
        item.stash[_KIND] = _find_kind(item)
    return item.stash[_KIND]


def _find_kind(item: pytest.Item) -> str:
    fixtures = set(getattr(item, "fixturenames", ()))
    if item.nodeid.startswith(CHAOS):
        return "chaos"
    if fixtures & DRILL_FIXTURES:
        return "drill"
    if fixtures & ON_THE_BRIDGE:
        return "real"
    parameters = parameters_of(item)
    if "fake" in parameters:
        return "unit"
    is_real = item.nodeid.startswith(REAL_FOLDERS) or any(one.startswith(REAL_PARAMETERS) for one in parameters)
    return "real" if is_real or any(_is_real(name, fixture) for name, fixture in _fixtures(item)) else "unit"


def group_of(item: pytest.Item) -> str:
    """The group of tests that share an engine, service or agent server that takes long to start; empty: none."""
    if kind_of(item) == "unit":
        return ""
    if any(name in AGENT_SERVERS or _returns(fixture.func, AGENT_SERVERS_MODULE) for name, fixture in _fixtures(item)):
        return "agent_servers"
    homes = {"module": item.path.stem, "package": item.path.parent.name}
    shared = ((name, fixture.scope) for name, fixture in _fixtures(item) if _is_real(name, fixture))
    return next((f"{homes[scope]}.{name}" for name, scope in shared if scope in homes), "")


def may_rerun(item: pytest.Item) -> bool:
    """Whether a test may be run again after a failure (decision 27)."""
    return not (item.nodeid.startswith(NO_RERUN) or _imports_for_no_rerun(item.path))


@cache
def _imports_for_no_rerun(file: Path) -> bool:
    return NO_RERUN_IMPORTS.search(file.read_text(encoding="utf-8")) is not None


def parameters_of(item: pytest.Item) -> set[str]:
    """The strings among the parameters of a test and of its fixtures."""
    callspec = getattr(item, "callspec", None)
    return {value for value in callspec.params.values() if isinstance(value, str)} if callspec else set()


def _fixtures(item: pytest.Item) -> Iterable[tuple[str, pytest.FixtureDef[Any]]]:
    found = getattr(item, "_fixtureinfo", None)
    return [(name, found_for[-1]) for name, found_for in found.name2fixturedefs.items()] if found else []


def _is_real(name: str, fixture: pytest.FixtureDef[Any]) -> bool:
    return name in REAL_FIXTURES | DRILL_FIXTURES or _returns(fixture.func, *REAL_MODULES)


@cache
def _returns(fixture: Any, *wanted: str) -> bool:
    """Whether a fixture is annotated to return or yield a type that is defined in one of these modules."""
    returned = getattr(fixture, "__annotations__", {}).get("return")
    return any(f"{module}.".startswith(wanted) for module in _modules_of(returned))


def _modules_of(kind: Any) -> Iterator[str]:
    """The modules of a type and of all types in it."""
    yield str(getattr(kind, "__module__", ""))
    for inner in get_args(kind):
        yield from _modules_of(inner)
