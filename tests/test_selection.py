"""Marks and options of the suite: every test is of one kind, and runs on the databases that are asked for."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import kinds, selection
from tests.kinds import KINDS
from tests.services.directories import REPOSITORY
from tests.stages.statements import read_choice

SHOW = """
import json

def pytest_collection_finish(session):
    found = {item.nodeid: [mark.name for mark in item.iter_markers()] for item in session.items}
    with open({path!r}, "w") as file:
        json.dump(found, file)
"""
# Pytest's exit statuses with tests, and without any.
SELECTED = (0, 5)
# Files of this repository with tests of every kind, and a test of each.
KNOWN = {
    "tests/worker/engine/contract/test_containers.py::test_has_an_id[fake]": "unit",
    "tests/worker/engine/contract/test_containers.py::test_has_an_id[docker]": "real",
    "tests/worker/engine/test_docker_engine.py::test_least_privilege": "real",
    "tests/worker/engine/test_pull.py::test_image_that_is_pulled_twice_is_there": "real",
    "tests/worker/agent_server/test_contract.py::TestProbe::test_accepts_its_key[fake]": "unit",
    "tests/worker/agent_server/test_contract.py::TestProbe::test_accepts_its_key[real]": "real",
    "tests/worker/agent_server/test_contract.py::TestConversation::test_is_not_run_twice[fake]": "real",
    "tests/contract/test_real_agent_server.py::test_skills_and_hooks[sqlite]": "real",
    "tests/worker/sandboxes/test_plan_walk.py::test_short_walks_end_well": "unit",
    "tests/bench/test_bench.py::test_own_parts_are_measured": "real",
    "tests/clients/test_python_sdk.py::test_settings[here]": "real",
    "tests/drills/faults/test_points_cover_writes.py::test_write_without_a_point_is_found": "unit",
    "tests/drills/faults/test_points_cover_writes.py::test_each_write_is_in_some_operation[sqlite]": "drill",
    "tests/drills/chaos/test_chaos.py::test_promise_is_kept[sqlite]": "chaos",
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


def collect(root: Path, tmp_path: Path, *arguments: str) -> dict[str, set[str]]:
    """The tests that are selected, with their marks."""
    found = tmp_path / "found.json"
    (tmp_path / "show_marks.py").write_text(SHOW.replace("{path!r}", repr(str(found))))
    plugins = [word for name in ("show_marks", "xdist", "pytest_timeout") for word in ("-p", name)]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *plugins, *arguments]
    # Plugins that are installed take longer to import than all the rest.
    environment = os.environ | {"PYTHONPATH": f"{REPOSITORY}:{tmp_path}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in SELECTED, done.stdout + done.stderr
    read: dict[str, list[str]] = json.loads(found.read_text())
    return {name: set(marks) for name, marks in read.items()}


def select(tmp_path: Path, *options: str, file: str = "tests/test_a.py", content: str = BOTH) -> list[str]:
    """The tests of one file that are selected, without the file's name."""
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    (tmp_path / "pytest.ini").touch()
    return [name.rpartition("::")[2] for name in collect(tmp_path, tmp_path, "-p", "tests.selection", *options)]


def test_every_test_is_of_one_kind(tmp_path: Path) -> None:
    found = collect(REPOSITORY, tmp_path, *{name.partition("::")[0] for name in KNOWN}, "--thorough")
    assert {name: marks & KINDS.keys() for name, marks in found.items() if len(marks & KINDS.keys()) != 1} == {}
    assert {name: found[name] & KINDS.keys() for name in KNOWN} == {name: {kind} for name, kind in KNOWN.items()}
    drills = [marks for name, marks in found.items() if name.startswith("tests/drills/")]
    assert drills
    assert all("no_rerun" in marks for marks in drills)


def test_test_with_an_engine_is_real_under_any_fixture_name(tmp_path: Path) -> None:
    assert select(tmp_path, "-m", "unit", content=ENGINE) == ["test_nothing"]
    assert select(tmp_path, "-m", "real", content=ENGINE) == ["test_engine"]


def test_room_of_unit_tests_has_no_others(tmp_path: Path) -> None:
    file = "tests/shared/test_a.py"
    with pytest.raises(AssertionError, match=f"not a unit test, in a room .*{file}::test_engine"):
        select(tmp_path, file=file, content=ENGINE)
    assert select(tmp_path, "-m", "real", file=file, content=ENGINE) == []


def test_one_database_is_tested(tmp_path: Path) -> None:
    found = select(tmp_path, "--database", "sqlite", "-k", "not several")
    assert found == ["test_both[sqlite]", "test_none"]
    found = select(tmp_path, "--database", "postgresql", "-k", "not several")
    assert found == ["test_both[postgresql]", "test_none", "test_single[postgresql]"]


def test_unit_test_of_a_new_module_runs_on_both_databases(tmp_path: Path) -> None:
    found = select(tmp_path, "-k", "both or single")
    assert found == ["test_both[sqlite]", "test_both[postgresql]", "test_single[postgresql]"]


def test_real_test_runs_on_one_database_always_the_same(tmp_path: Path) -> None:
    file = "tests/integration/test_a.py"
    found = select(tmp_path, "-k", "several", file=file)
    assert sorted(name[-2] for name in found) == list("abcd")
    assert {name.partition("[")[2].partition("-")[0] for name in found} == {"sqlite", "postgresql"}
    assert select(tmp_path, "-k", "several", file=file) == found
    assert len(select(tmp_path, "-k", "several", "--thorough", file=file)) == 8


def test_test_above_the_store_runs_on_postgresql_if_it_sends_a_statement_of_its_own(tmp_path: Path) -> None:
    file, name = next((file, test) for file, tests in read_choice().items() for test in tests if test.endswith("[]"))
    content = BOTH.replace("test_both", name.removesuffix("[]")).replace("test_several", "test_other")
    found = select(tmp_path, "-k", "not none and not single", file=file, content=content)
    assert [test for test in found if "postgresql" in test] == [name.replace("[]", "[postgresql]")]
    assert len([test for test in found if "sqlite" in test]) == 5
    at_night = select(tmp_path, "-k", "not none and not single", "--thorough", file=file, content=content)
    assert len(at_night) == 10


def test_description_is_tested_on_postgresql_until_night(tmp_path: Path) -> None:
    assert select(tmp_path, "-k", "both", file="tests/api/test_schemathesis.py") == ["test_both[postgresql]"]


def test_test_of_tests_is_not_in_the_inner_loop(tmp_path: Path) -> None:
    file = "tests/stages/test_a.py"
    assert select(tmp_path, "--quick", "-k", "none", file=file) == []
    assert select(tmp_path, "-k", "none", file=file) == ["test_none"]


def test_test_for_the_night_runs_with_thorough_alone(tmp_path: Path) -> None:
    content = "import pytest\n@pytest.mark.nightly\ndef test_long(): 1\ndef test_short(): 1\n"
    assert select(tmp_path, content=content) == ["test_short"]
    assert select(tmp_path, "--thorough", content=content) == ["test_long", "test_short"]


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
