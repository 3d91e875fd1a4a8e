"""A rollout and a rollback under load: API and worker of the last release beside those of the working tree."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.earlier_code import find_last_release, run_command_line
from tests.integration.test_earlier_code import Code, errors_in, go_on, load_on, running_code
from tests.integration.test_rolling_restart import SANDBOXES, Load
from tests.services.directories import REPOSITORY
from tests.services.ports import Port
from tests.services.private_engine import PrivateEngine
from tests.services.valkey import Valkey


@pytest.fixture
def release(empty_url: str, valkey: Valkey, engine: PrivateEngine, tmp_path: Path) -> Iterator[Code]:
    """The last release, running on its own schema."""
    with running_code(find_last_release(), tmp_path / "release", empty_url, valkey, engine) as code:
        yield code


@pytest.mark.nightly  # tests of migrations cover rows and earlier statements for each change
@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_rollout_and_rollback_under_load_fail_no_request(release: Code, engine: PrivateEngine) -> None:
    with release.client() as client:
        kept = client.post(SANDBOXES, params={"wait": 60}).json()["id"]
    container = engine.docker("inspect", "--format", "{{.Id}} {{.State.StartedAt}}", f"aw-{kept}")
    tree = beside(release, "tree", REPOSITORY)
    back = beside(release, "back", release.tree)
    try:
        # A rollback by `make restart` runs the migration of the former version, too.
        loads = assign_files(release, tree, migrates=True) + assign_files(tree, back, migrates=True)
    finally:
        tree.stop()
        back.stop()
    assert [failure for load in loads for failure in load.failures] == []
    assert engine.docker("inspect", "--format", "{{.Id}} {{.State.StartedAt}}", f"aw-{kept}") == container
    for code in (release, tree, back):
        assert re.search(r'"event": "(action|step)"', code.log("worker")), f"the worker of {code.name} did nothing"
        assert [line for module in ("worker", "api") for line in errors_in(code.log(module))] == []


def assign_files(old: Code, new: Code, *, migrates: bool = False) -> list[Load]:
    """Start API and worker of `new` beside those of `old`, let both work under load, and stop those of `old`."""
    with ExitStack() as stack:
        with load_on(old) as before:
            go_on(before, 1)
            if migrates:
                run_command_line(new.tree, "migrate", environment=new.environment)
                go_on(before, 1)
            new.start()
            after = stack.enter_context(load_on(new))
            go_on([*before, *after], 2)  # both workers take jobs of both APIs
        for module in ("worker", "api"):
            old.stop_module(module)
        go_on(after, 1)
    return [*before, *after]


def beside(code: Code, name: str, tree: Path) -> Code:
    """Another tree's API and worker, on the node, the store and the door of the first."""
    return replace(code, name=name, tree=tree, port=Port(), has_own_door=False, running={})
