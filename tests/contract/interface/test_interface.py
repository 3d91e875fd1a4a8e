"""A running service keeps every promise of the interface, and the report says so."""

import ast

import pytest

from tests.contract.interface.promise import Caller
from tests.contract.interface.report import PROMISES, REPORT, render
from tests.services.deployment import Deployment
from tests.services.directories import REPOSITORY
from tests.services.engine import TINY_IMAGE


def test_service_fulfils_every_promise(installed: Deployment) -> None:
    installed.add_spec(TINY_IMAGE, {"TINY_CONVERSES": "1"})
    installed.start()
    with installed.user("alice") as client:
        client.headers.pop("Authorization")
        caller = Caller(client, client.user.key)
        deviations = {promise.asks: found for promise in PROMISES if (found := caller.find_deviations(promise))}
    assert deviations == {}


def test_report_is_current() -> None:
    assert REPORT.read_text() == render()


@pytest.mark.parametrize("test", sorted({promise.test for promise in PROMISES}))
def test_named_test_exists(test: str) -> None:
    path, *names = test.split("::")
    nodes = ast.walk(ast.parse((REPOSITORY / path).read_text()))
    assert names[-1] in {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
