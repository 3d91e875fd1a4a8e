"""The stages of each run, their order, and their arguments."""

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.services.engine_address import ENGINE
from tests.stages.pythons import environment_of

LINT = ("make", "lint")
IMAGES = ("deploy/image/build", "sandbox", "tiny", "clients")
# The first process begins with the longest tests, which mostly wait; the others take over the rest of its share.
_BY_STEALING = ("--dist", "worksteal", "--longest-first")
# Three processes keep two cores busy although some tests wait, and each further process would collect all tests, too.
PROCESSES = ("-n", "3", *_BY_STEALING)
# With PostgreSQL and the tests that `make unit` leaves out, tests wait more.
PROCESSES_FOR_A_CHANGE = ("-n", "4", *_BY_STEALING)
# These tests spend more than half of their time waiting. Tests that share a heavy fixture stay in one process.
_BY_GROUP = ("--dist", "loadgroup", "--no-loadscope-reorder", "--longest-first")
WAITING = ("-n", "4", *_BY_GROUP)
# At night, the tests run on both databases, and most of their time is CPU time.
WAITING_AT_NIGHT = ("-n", "2", *_BY_GROUP)
ALONE = ("-n", "0")
RANDOM = (
    "tests/api/test_schemathesis.py",
    "tests/worker/sandboxes/test_reconciler_properties.py",
    "tests/worker/test_interleavings.py",
    "tests/worker/sandboxes/test_plan_walk.py",
)
# Tests that promise durations, or that no request fails under maximum load: at night, they run alone.
ALONE_AT_NIGHT = (
    "tests/isolation/test_hostile_agent_servers.py",
    "tests/integration/test_earlier_code.py",
    "tests/integration/test_rolling_restart.py",
)
# The sandbox image with the newest published agent server.
NEXT_IMAGE = "agent-workspace/sandbox:next"
# The supported versions of Python, except the oldest, on which everything else runs.
OTHER_PYTHONS = ("3.12", "3.13")
CHAOS_SECONDS = 1200
# The minimum number of acknowledged writes of a nightly chaos run.
CHAOS_WRITES = 5000
STATEMENTS = "var/statements"
# All benchmarks together take an hour and a half.
BENCHMARKS = {
    "starts": "warm,warm-tiny,pause,cold,conversation,wake,memory",
    "bursts": "warm-burst,cold-burst,webhooks,engine,versions",
    "store": "queue,stalls,sweep,lists",
}
# On a slow machine, the deaths at all points of one database take an hour.
PARTS_OF_POINTS = 2
# Neighboring operations have similar numbers of pairs, so each part takes every fifth operation.
PARTS_OF_PAIRS = 5


@dataclass(frozen=True)
class Stage:
    """A process of a run.

    Args:
        name: its name in the summary and in its files.
        command: the command to run.
        is_pytest: whether it selects tests and writes results; otherwise only its exit status counts.
        environment: additional environment variables.
        minutes: the maximum duration.
    """

    name: str
    command: tuple[str, ...]
    is_pytest: bool = False
    environment: tuple[tuple[str, str], ...] = ()
    minutes: float = 60


# Groups run in sequence, the stages of a group in parallel.
Groups = Sequence[Sequence[Stage]]


def select(name: str, *arguments: str) -> Stage:
    """A stage of tests."""
    return Stage(name, (sys.executable, "-m", "pytest", *arguments), is_pytest=True)


def without_engine(stage: Stage) -> Stage:
    """The stage without a Docker Engine, so that a test that needs one fails."""
    return replace(stage, environment=(("DOCKER_HOST", "unix:///nonexistent/docker.sock"),))


def program(name: str, *command: str) -> Stage:
    """A stage that is not pytest. A script uses the engine of the tests, and not the service's."""
    return Stage(name, command, environment=(("AW_DOCKER_HOST", ENGINE),))


def module(name: str, *arguments: str) -> Stage:
    """A stage that is one of the tests' own programs."""
    return Stage(name, (sys.executable, "-m", *arguments))


LINT_STAGE, IMAGES_STAGE = program("lint", *LINT), program("images", *IMAGES)

UNIT: Groups = [
    [without_engine(select("unit", "-m", "unit", "--database", "sqlite", "--quick", *PROCESSES))],
]
INTEGRATION: Groups = [
    [IMAGES_STAGE],
    [select("integration", "-m", "real", "--ignore=tests/clients", "--ignore=tests/browser", *WAITING)],
]
CI: Groups = [
    # The first two keep at most one core busy, and do not depend on the third.
    [LINT_STAGE, IMAGES_STAGE, without_engine(select("unit", "-m", "unit", *PROCESSES_FOR_A_CHANGE))],
    [select("real", "-m", "real", *WAITING)],
    [select("drills", "-m", "drill", "tests/drills", *ALONE)],
    [select("chaos", "-m", "chaos", "tests/drills", *ALONE)],
]


def _thorough(name: str, *arguments: str) -> Groups:
    return [[IMAGES_STAGE], [select(name, "--thorough", "-o", "timeout=3000", *arguments)]]


def _all_units() -> Groups:
    """All unit tests, and the check that a change's selection sends all of their statements to PostgreSQL."""
    recording = ("-p", "tests.stages.statements", "--statements", STATEMENTS)
    left_out = (f"--ignore={path}" for path in RANDOM)
    return [
        [program("forget-statements", "rm", "-rf", STATEMENTS)],
        *_thorough("unit", "-m", "unit", *left_out, *recording, *PROCESSES),
        [module("statements", "tests.stages.statements", STATEMENTS, "--check")],
    ]


def _real(name: str, database: str) -> Groups:
    left_out = (f"--ignore={path}" for path in ("tests/cluster", *ALONE_AT_NIGHT))
    return _thorough(name, "-m", "real", "--database", database, *left_out, *WAITING_AT_NIGHT)


def _all_points() -> dict[str, Groups]:
    parts = [(database, number) for database in ("sqlite", "postgresql") for number in range(1, PARTS_OF_POINTS + 1)]
    return {f"points-{database}-{number}": _points(database, number) for database, number in parts}


def _points(database: str, number: int) -> Groups:
    only = {"sqlite": "sqlite", "postgresql": "only-postgresql"}[database]
    share = ("--share", f"{number}/{PARTS_OF_POINTS}")
    return _thorough(f"points-{database}-{number}", "-m", "drill", "--database", only, *share, "tests/drills", *ALONE)


def _all_pairs() -> dict[str, Groups]:
    from tests.drills.faults.operations import OPERATIONS  # noqa: PLC0415 - takes a second, and `make unit` does not need it

    names = list(OPERATIONS)
    parts = [names[begin::PARTS_OF_PAIRS] for begin in range(PARTS_OF_PAIRS)]
    return {f"pairs-{number}": _pairs(f"pairs-{number}", part) for number, part in enumerate(parts, 1)}


def _pairs(name: str, operations: Sequence[str]) -> Groups:
    chosen = ("--pairs", "all", "--seed", _seed(), "--report", f"var/log/{name}-report")
    return [[IMAGES_STAGE], [module(name, "tests.drills.faults", *chosen, "--operations", *operations)]]


def _seed() -> str:
    """A random seed for this night; the reports name it."""
    return str(random.SystemRandom().randrange(10**6))


def _chaos(database: str) -> Groups:
    name = f"chaos-{database}"
    chosen = (
        "--database",
        database,
        "--seed",
        _seed(),
        "--seconds",
        str(CHAOS_SECONDS),
        "--default-settings",
        "--operations",
        str(CHAOS_WRITES),
    )
    return [[IMAGES_STAGE], [module(name, "tests.drills.chaos", *chosen, "--report", f"var/log/{name}.md")]]


def _all_benchmarks() -> dict[str, Groups]:
    parts = {
        f"bench-{part}-{database}": (part, database) for database in ("sqlite", "postgresql") for part in BENCHMARKS
    }
    return {name: _bench(name, *chosen) for name, chosen in parts.items()}


def _bench(name: str, part: str, database: str) -> Groups:
    found = f"var/log/{name}.json"
    measures = ("--only", BENCHMARKS[part])
    return [
        [IMAGES_STAGE],
        [module(name, "tests.bench", "--database", database, *measures, "--json", found)],
        [module(f"{name}-compared", "tests.stages.benchmarks", found)],
    ]


def _other_pythons() -> Groups:
    """`make unit` with each of the other Pythons."""
    return [group for version in OTHER_PYTHONS for group in _other_python(version)]


def _other_python(version: str) -> Groups:
    name, python = f"python-{version}", str(environment_of(version) / "bin" / "python")
    tests = select(f"unit-{version}", "-m", "unit", "--database", "sqlite", "--quick", *PROCESSES)
    held = without_engine(replace(tests, command=(python, *tests.command[1:])))
    return [[module(name, "tests.stages.pythons", version)], [held]]


def _next() -> Groups:
    chosen = ("-m", "real", "-k", "real", "--database", "sqlite", "tests/worker", "tests/contract", *WAITING)
    held = replace(select("next", *chosen), environment=(("AW_TEST_SANDBOX_IMAGE", NEXT_IMAGE),))
    return [[program("next-images", "deploy/image/build", "next", "tiny")], [held]]


def _clusters() -> Groups:
    """Clusters of several machines, in sequence."""
    held = select("cluster", "--thorough", "-o", "timeout=3000", "--database", "sqlite", "tests/cluster", *ALONE)
    return [[IMAGES_STAGE], [held]]


def nightly() -> dict[str, Groups]:
    """The parts of the nightly tests by name. Each takes less than an hour and can run by itself."""
    return {
        "unit": _all_units(),
        "random": _thorough("random", *RANDOM, *PROCESSES),
        "real-sqlite": _real("real-sqlite", "sqlite"),
        "real-postgresql": _real("real-postgresql", "only-postgresql"),
        "real-alone": _thorough("real-alone", "-m", "real", *ALONE_AT_NIGHT, *ALONE),
        "cluster": _clusters(),
        **_all_points(),
        **_all_pairs(),
        "chaos-sqlite": _chaos("sqlite"),
        "chaos-postgresql": _chaos("postgresql"),
        **_all_benchmarks(),
        "pythons": _other_pythons(),
        "next": _next(),
    }
