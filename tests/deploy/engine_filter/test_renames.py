"""A worker may rename a container back to the name of the container's own sandbox, and to no other sandbox's."""

import pytest

from deploy.engine_filter.bodies import Policy, RequestRefused
from deploy.engine_filter.requests import Request, RuleContext, admit, parse
from worker.engine.docker_engine import DISPLACED, INSTALLATION_LABEL, SANDBOX_LABEL

CONTAINER = "0123456789abcdef" * 4
LABELS = {INSTALLATION_LABEL: "own", SANDBOX_LABEL: "s1"}


def rename(labels: dict[str, str] | None, name: str, container: str = CONTAINER) -> Request:
    found = None if labels is None else {"Id": CONTAINER, "Config": {"Labels": labels}}
    context = RuleContext(Policy("own"), lambda _: found)
    return admit(parse("POST", f"/v1.43/containers/{container}/rename?name={name}", b"", ""), context)


@pytest.mark.parametrize("name", ["aw-s1", f"aw-s1{DISPLACED}"])
def test_container_gets_the_name_of_its_sandbox(name: str) -> None:
    assert rename(LABELS, name).target == f"/v1.43/containers/{CONTAINER}/rename?name={name}"


@pytest.mark.parametrize(
    ("labels", "name", "container"),
    [
        (LABELS, "aw-s2", CONTAINER),
        (LABELS, "aw-s1", "aw-s2"),
        ({INSTALLATION_LABEL: "own"}, "aw-None", CONTAINER),
        (LABELS | {INSTALLATION_LABEL: "other"}, "aw-s1", CONTAINER),
        (None, "aw-s1", CONTAINER),
    ],
    ids=["another name", "by name", "without a sandbox", "another installation's", "missing"],
)
def test_other_renames_are_refused(labels: dict[str, str] | None, name: str, container: str) -> None:
    with pytest.raises(RequestRefused):
        rename(labels, name, container)
