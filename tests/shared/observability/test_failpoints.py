"""The hook for tests: the events that an observer receives. Without a test, there is no observer."""

import re

import pytest

from shared.observability import failpoints
from tests.services.directories import REPOSITORY


@failpoints.around("engine.start")
def double(number: int) -> int:
    """A function that is decorated before an observer is set, as those of the product's modules are."""
    return 2 * number


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    told: list[tuple[str, str]] = []
    monkeypatch.setattr(failpoints, "observer", lambda *event: told.append(event))
    return told


def test_there_is_no_observer() -> None:
    assert failpoints.observer is None
    failpoints.begin("sandboxes.start")
    assert double(2) == 4


def test_no_code_of_the_product_sets_an_observer() -> None:
    files = [file for part in ("api", "worker", "shared", "deploy") for file in (REPOSITORY / part).rglob("*.py")]
    assert [file for file in files if re.search(r"failpoints\.observer|import observer", file.read_text())] == []


def test_observer_is_names_of_operations_and_points(reported: list[tuple[str, str]]) -> None:
    failpoints.begin("sandboxes.start")
    assert double(2) == 4
    with failpoints.around("engine.stop"):
        reported.append(("stop", ""))
    failpoints.before("database.commit")
    failpoints.after("database.commit")
    assert reported == [
        ("begin", "sandboxes.start"),
        ("before", "engine.start"),
        ("after", "engine.start"),
        ("before", "engine.stop"),
        ("stop", ""),
        ("after", "engine.stop"),
        ("before", "database.commit"),
        ("after", "database.commit"),
    ]


def test_failed_write_reaches_no_point_after_it(reported: list[tuple[str, str]]) -> None:
    with pytest.raises(ZeroDivisionError), failpoints.around("engine.stop"):
        raise ZeroDivisionError
    assert reported == [("before", "engine.stop")]
