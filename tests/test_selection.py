"""Marks and options of the suite: every test is of one kind, and runs on the databases that are asked for."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests import kinds, selection
from tests.kinds import KINDS
from tests.services.directories import REPOSITORY
from tests.services.forked_program import ForkedProgram, forked_program
from tests.stages.statements import read_choice

Collect = Callable[..., dict[str, set[str]]]
Select = Callable[..., list[str]]

CROWDED = "tests/api/test_crowded_rows.py::test_creates_leave_write_slots_for_other_requests"
DIFFERENCES = "tests/worker/agent_server/test_differences.py::test_real_server_behaves_as_listed"
LOST = "tests/integration/nodes/test_lost_nodes.py::test_sandbox_fails_over_and_never_runs_twice"
# Files of this repository with tests of every kind, and a test of each.
KNOWN = {
    "tests/worker/engine/contract/test_containers.py::test_engine_has_a_stable_id[fake]": "unit",
    "tests/worker/engine/contract/test_containers.py::test_engine_has_a_stable_id[docker]": "real",
    "tests/worker/engine/test_docker_engine.py::test_container_has_the_least_privileges": "real",
    "tests/worker/engine/test_pull.py::test_image_that_is_pulled_twice_is_present": "real",
    "tests/worker/agent_server/test_contract.py::TestProbe::test_server_accepts_its_key[fake]": "unit",
    "tests/worker/agent_server/test_contract.py::TestProbe::test_server_accepts_its_key[real]": "real",
    "tests/worker/agent_server/test_contract.py::TestConversation::test_run_is_not_repeated[fake]": "real",
    "tests/contract/test_real_agent_server.py::test_skills_and_hooks_are_listed[sqlite]": "real",
    f"{CROWDED}[sandbox_spec-postgresql]": "unit",
    "tests/worker/sandboxes/test_plan_walk.py::test_short_random_walks_reach_the_desired_state": "unit",
    "tests/bench/test_bench.py::test_parts_of_this_service_are_measured": "real",
    "tests/clients/test_python_sdk.py::test_sdk_reads_the_settings[here]": "real",
    "tests/drills/faults/test_points_cover_writes.py::test_write_without_a_point_is_found": "unit",
    "tests/drills/faults/test_points_cover_writes.py::test_each_write_is_in_some_operation[sqlite]": "drill",
    "tests/drills/chaos/test_chaos.py::test_promise_is_kept[sqlite]": "chaos",
}
# Tests that share a slow fixture, in one file or in several, and their groups.
GROUPS = {
    "tests/worker/agent_server/test_contract.py::TestProbe::test_server_accepts_its_key[real]": "agent_servers",
    "tests/worker/agent_server/test_webhooks.py::TestEvents::test_events_begin_with_full_state[tiny]": "agent_servers",
    "tests/contract/test_real_agent_server.py::test_skills_and_hooks_are_listed[sqlite]": "agent_servers",
    f"{DIFFERENCES}[real-nothing is spent]": "agent_servers",
    "tests/clients/test_python_sdk.py::test_sdk_reads_the_settings[here]": "test_python_sdk.site",
    "tests/integration/nodes/test_nodes.py::test_drained_node_keeps_only_files[sqlite]": "nodes.two_engines",
    f"{LOST}[sqlite-True]": "nodes.two_engines",
}
BOTH = """
import pytest

@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request):
    return request.param

def test_both(database_url): 1
@pytest.mark.parametrize("x", "abcd")
def test_several(database_url, x): 1
def test_none(): 1
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_single(database_url): 1
"""
ENGINE = """
from collections.abc import Iterator
import pytest
from tests.services.private_engine import PrivateEngine

@pytest.fixture
def something() -> Iterator[PrivateEngine]:
    yield None

@pytest.fixture
def other(something) -> None: 1
def test_engine(other): 1
def test_nothing(): 1
"""


@pytest.fixture(scope="module")
def collecting() -> Iterator[ForkedProgram]:
    """A process that imports pytest once, because the import takes longer than to collect these tests."""
    with forked_program("tests.fakes.collecting") as program:
        yield program


@pytest.fixture
def collect(collecting: ForkedProgram) -> Collect:
    """The tests that are selected below a root, with their marks."""

    def collect(root: Path, *arguments: str) -> dict[str, set[str]]:
        run = collecting.run(str(root), *arguments)
        run.stdin.close()
        with run.stdout as output:
            said = output.read()
        *_, result = said.splitlines() or [""]
        assert result.startswith("{"), said
        read: dict[str, list[str]] = json.loads(result)
        return {name: set(marks) for name, marks in read.items()}

    return collect


@pytest.fixture
def select(collect: Collect, tmp_path: Path) -> Select:
    """The tests of one file that are selected, without the file's name."""

    def select(*options: str, file: str = "tests/test_a.py", content: str = BOTH) -> list[str]:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        (tmp_path / "pytest.ini").touch()
        return [name.rpartition("::")[2] for name in collect(tmp_path, "-p", "tests.selection", *options)]

    return select


def test_every_test_is_of_one_kind(collect: Collect) -> None:
    found = collect(REPOSITORY, *{name.partition("::")[0] for name in KNOWN}, "--thorough")
    assert {name: marks & KINDS.keys() for name, marks in found.items() if len(marks & KINDS.keys()) != 1} == {}
    assert {name: found[name] & KINDS.keys() for name in KNOWN} == {name: {kind} for name, kind in KNOWN.items()}
    drills = [marks for name, marks in found.items() if name.startswith("tests/drills/")]
    assert drills
    assert all("no_rerun" in marks for marks in drills)


def test_interleavings_and_properties_are_never_run_again(collect: Collect, tmp_path: Path) -> None:
    imports = {
        "test_overlap.py": "from tests.interleaving import overlap",
        "test_property.py": "import hypothesis",
        "test_fuzzed.py": "from schemathesis.checks import not_a_server_error",
        "test_other.py": "from tests.waiting import eventually",
    }
    for name, line in imports.items():
        (tmp_path / name).write_text(f"def test_it():\n    {line}\n")
    (tmp_path / "pytest.ini").touch()
    found = collect(tmp_path, "-p", "tests.selection")
    assert [name for name, marks in found.items() if "no_rerun" not in marks] == ["test_other.py::test_it"]
    assert len(found) == len(imports)


def test_tests_that_share_a_slow_fixture_are_in_one_group(collect: Collect) -> None:
    found = collect(REPOSITORY, *{name.partition("::")[0] for name in GROUPS}, "--thorough")
    groups = {name: {mark for mark in found[name] if mark.startswith("group ")} for name in GROUPS}
    assert groups == {name: {f"group {group}"} for name, group in GROUPS.items()}


def test_test_with_an_engine_is_real_under_any_fixture_name(select: Select) -> None:
    assert select("-m", "unit", content=ENGINE) == ["test_nothing"]
    assert select("-m", "real", content=ENGINE) == ["test_engine"]


def test_folder_of_unit_tests_has_no_other_tests(select: Select) -> None:
    file = "tests/shared/test_a.py"
    with pytest.raises(AssertionError, match=f"not a unit test, in a room .*{file}::test_engine"):
        select(file=file, content=ENGINE)
    assert select("-m", "real", file=file, content=ENGINE) == []


def test_folders_on_both_sides_of_a_file_have_their_own_fixtures(collect: Collect, tmp_path: Path) -> None:
    fixture = "import pytest\n@pytest.fixture(params=['own'])\ndef engine(request): return request.param\n"
    files = {"test_b.py": "def test_b(): 1", "room/conftest.py": fixture}
    files |= {f"room/{name}/test_{name}.py": f"def test_{name}(engine): 1" for name in "ac"}
    for name, content in files.items():
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (tmp_path / "pytest.ini").touch()
    arguments = [f"tests/{name}" for name in ("room/a", "test_b.py", "room/c")]
    found = collect(tmp_path, "-p", "tests.selection", *arguments)
    assert [name.rpartition("::")[2] for name in found] == ["test_a[own]", "test_b", "test_c[own]"]


def test_one_database_is_tested(select: Select) -> None:
    found = select("--database", "sqlite", "-k", "not several")
    assert found == ["test_both[sqlite]", "test_none"]
    found = select("--database", "postgresql", "-k", "not several")
    assert found == ["test_both[postgresql]", "test_none", "test_single[postgresql]"]
    found = select("--database", "only-postgresql", "-k", "not several")
    assert found == ["test_both[postgresql]", "test_single[postgresql]"]


def test_shares_are_disjoint_and_cover_all_tests(select: Select) -> None:
    shares = [select("--thorough", "--share", f"{number}/3") for number in (1, 2, 3)]
    assert [len(share) for share in shares] == [4, 4, 4]
    assert sorted(name for share in shares for name in share) == sorted(select("--thorough"))


@pytest.mark.parametrize("share", ["0/2", "3/2", "1", "1/", "-1/2", "a/b"])
def test_invalid_share_is_refused(select: Select, share: str) -> None:
    with pytest.raises(AssertionError, match=f"not a share such as 1/2: {share}"):
        select(f"--share={share}")


def test_unit_test_of_a_new_module_runs_on_both_databases(select: Select) -> None:
    found = select("-k", "both or single")
    assert found == ["test_both[sqlite]", "test_both[postgresql]", "test_single[postgresql]"]


def test_real_test_always_runs_on_the_same_database(select: Select) -> None:
    file = "tests/integration/test_a.py"
    found = select("-k", "several", file=file)
    assert sorted(name[-2] for name in found) == list("abcd")
    assert {name.partition("[")[2].partition("-")[0] for name in found} == {"sqlite", "postgresql"}
    assert select("-k", "several", file=file) == found
    assert len(select("-k", "several", "--thorough", file=file)) == 8


def test_test_above_the_store_runs_on_postgresql_if_it_sends_a_statement_of_its_own(select: Select) -> None:
    chosen = [(file, test) for file, tests in read_choice().items() for test in tests]
    file, name = next((file, test) for file, test in chosen if test.endswith("[]") and "::" not in test)
    content = BOTH.replace("test_both", name.removesuffix("[]")).replace("test_several", "test_other")
    found = select("-k", "not none and not single", file=file, content=content)
    assert [test for test in found if "postgresql" in test] == [name.replace("[]", "[postgresql]")]
    assert len([test for test in found if "sqlite" in test]) == 5
    at_night = select("-k", "not none and not single", "--thorough", file=file, content=content)
    assert len(at_night) == 10


def test_description_is_tested_on_postgresql_alone_until_the_nightly_run(select: Select) -> None:
    assert select("-k", "both", file="tests/api/test_schemathesis.py") == ["test_both[postgresql]"]


def test_test_of_tests_is_not_in_the_fast_run(select: Select) -> None:
    file = "tests/stages/test_a.py"
    assert select("--quick", "-k", "none", file=file) == []
    assert select("-k", "none", file=file) == ["test_none"]


def test_nightly_test_runs_with_thorough_only(select: Select) -> None:
    content = "import pytest\n@pytest.mark.nightly\ndef test_long(): 1\ndef test_short(): 1\n"
    assert select(content=content) == ["test_short"]
    assert select("--thorough", content=content) == ["test_long", "test_short"]


@pytest.mark.parametrize(
    "paths",
    [
        kinds.NO_RERUN,
        kinds.REAL_FOLDERS,
        list(read_choice()),
        selection.POSTGRESQL_FOR_A_CHANGE,
        selection.NOT_IN_THE_INNER_LOOP,
        selection.UNIT_FOLDERS,
        [kinds.CHAOS],
    ],
)
def test_listed_paths_exist(paths: Sequence[str]) -> None:
    assert [path for path in paths if not (REPOSITORY / path).exists()] == []


def test_tests_of_a_file_stay_together_and_files_with_long_tests_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise what they share, such as a filled store, is made for each of them."""
    monkeypatch.setattr(
        selection, "read_durations", lambda: {"tests.test_a::test_slow": 2.0, "tests.test_b::test_slower": 3.0}
    )
    names = ["test_c.py::test_quick", "test_a.py::test_first", "test_b.py::test_slower", "test_a.py::test_slow"]
    items: list[Any] = [
        Mock(nodeid=f"tests/{name}", path=name.partition("::")[0], get_closest_marker=lambda _: None) for name in names
    ]
    selection.put_longest_first(items)
    assert [item.nodeid.removeprefix("tests/") for item in items] == [
        "test_b.py::test_slower",
        "test_a.py::test_first",
        "test_a.py::test_slow",
        "test_c.py::test_quick",
    ]
