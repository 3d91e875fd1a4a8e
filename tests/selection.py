"""Test selection: a pytest plugin with options, which marks each test by its needs.

`unit` tests need no Docker Engine. `real` tests start engines, sandboxes or the service's processes. `drill` and
`chaos` tests break these on purpose. Each test gets one of these marks by its fixtures and its folder, never by hand.
"""

import argparse
import zlib
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path

import pytest

from tests import effort
from tests.effort import Effort
from tests.kinds import (
    DATABASE_PARAMETER,
    DATABASES,
    KINDS,
    OTHER_MARKS,
    REAL_FOLDERS,
    group_of,
    kind_of,
    may_rerun,
    parameters_of,
)
from tests.services.directories import MEMORY, has_room
from tests.stages.durations import read_durations, seconds_of
from tests.stages.statements import read_choice, runs_on_postgresql

# --- what is left out ------------------------------------------------------------------------------------------------

# Left out of `make unit`: tests of tests, of deployment, of servers and of a real broker, which start processes; tests
# that wait for the timeouts of stalled or hostile peers; tests with filled databases, recordings or megabytes of input;
# and tests of all operations, of all git hosts, or of all points at which a worker can die or a
# start can end.
NOT_IN_THE_INNER_LOOP = (
    "tests/api/agent_server/test_hostile_operations.py",
    "tests/api/git/test_failures.py",
    "tests/api/git/test_searches.py",
    "tests/api/lists/test_conditional.py",
    "tests/api/middleware/test_request_body.py",
    "tests/api/middleware/test_responses.py",
    "tests/api/realtime/test_subscriber.py",
    "tests/api/request/test_authentication.py",
    "tests/api/routes/account/test_login.py",
    "tests/api/routes/v1/test_large_reports.py",
    "tests/api/sandbox_proxy/test_hostile_replay.py",
    "tests/api/sandbox_proxy/test_user_limits.py",
    "tests/api/sandbox_proxy/test_websocket_bytes.py",
    "tests/api/server/",
    "tests/api/test_app.py",
    "tests/api/test_bad_input.py",
    "tests/api/test_crowded_threads.py",
    "tests/api/test_hostile_requests.py",
    "tests/api/test_methods.py",
    "tests/api/test_schemathesis.py",
    "tests/api/test_stalled_database.py",
    "tests/bench/",
    "tests/contract/defects/test_workers.py",
    "tests/contract/test_recorded_webhooks.py",
    "tests/deploy/",
    "tests/drills/",
    "tests/services/",
    "tests/shared/cli/test_backups.py",
    "tests/shared/cli/test_broker.py",
    "tests/shared/cli/test_migrate.py",
    "tests/shared/container_logs/test_printed_text.py",
    "tests/shared/conversations/test_webhook_reports.py",
    "tests/shared/db/test_list_plans.py",
    "tests/shared/db/test_migrations.py",
    "tests/shared/db/test_stalled_database.py",
    "tests/shared/db/test_tls.py",
    "tests/shared/observability/test_metrics.py",
    "tests/shared/queue/test_external_broker.py",
    "tests/shared/queue/test_kombu_patches.py",
    "tests/stages/",
    "tests/test_selection.py",
    "tests/test_suite.py",
    "tests/worker/agent_server/test_hostile_servers.py",
    "tests/worker/conversations/message_delivery/test_no_duplicates.py",
    "tests/worker/conversations/test_many_children.py",
    "tests/worker/conversations/test_quoted_secrets.py",
    "tests/worker/conversations/test_start_cancellations.py",
    "tests/worker/conversations/test_start_interruptions.py",
    "tests/worker/leasing/test_stalled_database.py",
    "tests/worker/loops/test_dead_workers.py",
    "tests/worker/loops/test_sweep_plans.py",
    "tests/worker/network/test_routes.py",
    "tests/worker/sandboxes/reconciler/test_engine_in_trouble.py",
    "tests/worker/sandboxes/test_plan_walk.py",
    "tests/worker/sandboxes/test_reconciler_properties.py",
    "tests/worker/sandboxes/test_rescheduling.py",
    "tests/worker/test_celery_consumer.py",
    "tests/worker/test_garbage_messages.py",
    "tests/worker/test_interleavings.py",
    "tests/worker/test_lanes.py",
    "tests/worker/test_long_runs.py",
    "tests/worker/test_stalled_leases.py",
    "tests/worker/test_traces.py",
    "tests/worker/workspace/setup/test_clones.py",
)
# Folders that contain only unit tests: `-m real` does not even import them.
UNIT_FOLDERS = (
    "tests/api/",
    *(f"tests/contract/{room}/" for room in ("defects", "surface")),
    *(f"tests/deploy/{room}/" for room in ("door", "engine_filter", "service")),
    "tests/docs/",
    "tests/shared/",
    "tests/stages/",
    "tests/structure/",
    *(f"tests/worker/{room}/" for room in ("conversations", "leasing", "locks", "loops", "sandboxes", "workspace")),
)
ONLY_POSTGRESQL = "only-postgresql"
# For a change, drills run on one database: operations are recorded and installations made once; chaos has the other.
ON_ONE = {"drill": "sqlite", "chaos": "postgresql"}
# PostgreSQL's types reject more values: NUL, integers of 64 bits, surrogates.
POSTGRESQL_FOR_A_CHANGE = ("tests/api/test_schemathesis.py",)
# Longer values are truncated in tests' names, which are in reports and in each message between pytest's processes.
MAX_NAMED = 60
_FOLDERS = pytest.StashKey[dict[tuple[pytest.Collector, Path], pytest.Collector | None]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that a developer or a stage can choose."""
    group = parser.getgroup("selection")
    group.addoption(
        "--database",
        choices=[*DATABASES, "both", ONLY_POSTGRESQL],
        default="both",
        help="which databases to test; with one, also tests without a database, but only-postgresql leaves them out; "
        "both: what is above the store mostly on SQLite, drills there, real tests on one",
    )
    group.addoption("--quick", action="store_true", help="leave out what starts processes or tries many examples")
    group.addoption("--thorough", action="store_true", help="both databases everywhere, more and random examples")
    group.addoption("--all-points", action="store_true", help="drills kill at equivalent points, too")
    group.addoption("--longest-first", action="store_true", help="begin with the tests that take longest")
    group.addoption(
        "--share", type=read_share, default=(1, 1), metavar="K/N", help="each Nth test, beginning with the Kth"
    )
    group.addoption("--seed", type=int, help="where tests that count through seeds begin; with --thorough at random")


def pytest_configure(config: pytest.Config) -> None:
    """Register marks, and decide how much work tests do."""
    for name, meaning in (KINDS | OTHER_MARKS).items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    level = Effort.THOROUGH if config.option.thorough else Effort.QUICK if config.option.quick else Effort.CHANGE
    if config.option.seed is None:  # processes of xdist are given the options of the one that starts them
        config.option.seed = effort.new_seed() if level == Effort.THOROUGH else 0
    effort.set_effort(level, config.option.seed)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Show the options that decide which tests run, and with which they can be run again."""
    header = [f"selection: --database {config.option.database} --seed {config.option.seed}"]
    if config.option.database != "sqlite" and not has_room(MEMORY):
        header.append("warning: too little room in /dev/shm: PostgreSQL's files are on a disk, which takes much longer")
    return header


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a test by the beginning of a long value."""
    if not isinstance(val, str | bytes) or len(val) <= MAX_NAMED:
        return None
    return f"{ascii(val[:MAX_NAMED]).removeprefix('b')[1:-1]}..{len(val)}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what the inner loop leaves out, or files without real tests if only these are selected."""
    if not collection_path.is_relative_to(config.rootpath):
        return None
    name = str(collection_path.relative_to(config.rootpath)) + "/" * collection_path.is_dir()
    left_out = (*REAL_FOLDERS, *NOT_IN_THE_INNER_LOOP) if config.option.quick else ()
    return True if name.startswith((*left_out, *(UNIT_FOLDERS if config.option.markexpr == "real" else ()))) else None


@pytest.hookimpl(wrapper=True)
def pytest_collect_directory(
    path: Path, parent: pytest.Collector
) -> Generator[None, pytest.Collector | None, pytest.Collector | None]:
    """Keep one node per folder.

    For a file among its arguments, pytest collects the file's folder once more, with new nodes for the folders in it.
    The fixtures of a `conftest.py` belong to the first node only: tests below another node would get a plugin's
    instead.
    """
    folders = parent.session.stash.setdefault(_FOLDERS, {})
    found = yield
    return folders.setdefault((parent, path), found)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test, and deselect those for databases, nights or shares that are not selected."""
    for item in items:
        item.add_marker(kind_of(item))
        if not may_rerun(item):
            item.add_marker("no_rerun")
            item.user_properties.append(("rerun", "never"))
    misplaced = [item.nodeid for item in items if item.nodeid.startswith(UNIT_FOLDERS) and kind_of(item) != "unit"]
    if misplaced:
        raise pytest.UsageError(f"not a unit test, in a room of unit tests (UNIT_FOLDERS): {misplaced[0]}")
    chosen = set(select_databases(items, config.option.database, thorough=config.option.thorough))
    if not config.option.thorough:
        chosen = {item for item in chosen if item.get_closest_marker("nightly") is None}
    number, shares = config.option.share
    kept = [item for item in items if item in chosen][number - 1 :: shares]
    config.hook.pytest_deselected(items=list(set(items) - set(kept)))
    items[:] = kept
    for item in items:
        if group := group_of(item):
            item.add_marker(pytest.mark.xdist_group(group))
    if config.option.longest_first:
        put_longest_first(items)


def read_share(text: str) -> tuple[int, int]:
    """A share of the tests, as `1/2`.

    Raises:
        argparse.ArgumentTypeError: it is not K/N with 1 ≤ K ≤ N.
    """
    number, _, shares = text.partition("/")
    if not (number.isdecimal() and shares.isdecimal() and 1 <= int(number) <= int(shares)):
        raise argparse.ArgumentTypeError(f"not a share such as 1/2: {text}")
    return int(number), int(shares)


def put_longest_first(items: list[pytest.Item]) -> None:
    """Sort tests by their durations in earlier runs; a group counts as long as all its tests, and stays together.

    So do the tests of a file, which count as long as the longest of them: they may share what a fixture makes.
    """
    durations = read_durations()
    marks = {item: item.get_closest_marker("xdist_group") for item in items}
    groups = {item: str(mark.args[0]) if mark else "" for item, mark in marks.items()}
    seconds: dict[str, float] = defaultdict(float)
    for item in items:
        together = groups[item] or str(item.path)
        seconds[together] = max(seconds[together], seconds_of(item.nodeid, groups[item], durations))
    items.sort(key=lambda item: _place(groups[item] or str(item.path), seconds))


def _place(together: str, seconds: Mapping[str, float]) -> tuple[float, str]:
    return -seconds[together], together if seconds[together] else ""


def select_databases(items: Iterable[pytest.Item], database: str, *, thorough: bool) -> Iterable[pytest.Item]:
    """The tests that run with these options."""
    variants: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        variants[DATABASE_PARAMETER.sub("", item.nodeid)].append(item)
    for name, found in variants.items():
        wanted = _wanted(name, found, database, thorough=thorough)
        yield from (item for item in found if database_of(item) in wanted)


def _wanted(name: str, variants: list[pytest.Item], database: str, *, thorough: bool) -> set[str | None]:
    """The databases on which a test runs; None: it needs none."""
    if database != "both":
        return {"postgresql"} if database == ONLY_POSTGRESQL else {None, database}
    there = sorted({found for item in variants if (found := database_of(item))})
    if thorough or len(there) < 2:
        return {None, *DATABASES}
    if name.startswith(POSTGRESQL_FOR_A_CHANGE):
        return {"postgresql"}
    kind = kind_of(variants[0])
    if kind in ON_ONE:
        return {None, ON_ONE[kind]}
    if kind == "real":
        return {there[zlib.crc32(name.encode()) % len(there)]}
    return {None, *DATABASES} if runs_on_postgresql(name, read_choice()) else {None, "sqlite"}


def database_of(item: pytest.Item) -> str | None:
    """The database that a test runs on, by its parameter or its fixtures; None: it needs none."""
    if found := parameters_of(item) & set(DATABASES):
        return found.pop()
    fixtures = set(getattr(item, "fixturenames", ()))
    return "postgresql" if fixtures & {"postgres_stores", "postgres_server"} else None
