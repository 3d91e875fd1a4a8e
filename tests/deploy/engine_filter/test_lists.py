"""A worker lists what belongs to its installation, and volumes by the beginning of sandboxes' names alone."""

import json
from urllib.parse import quote

import pytest

from deploy.engine_filter.bodies import Policy, RequestRefused
from deploy.engine_filter.requests import Request, RuleContext, admit, parse
from worker.engine.docker_engine import INSTALLATION_LABEL

OWN, SANDBOXES = f"{INSTALLATION_LABEL}=own", "^aw-"


def listed(path: str, filters: dict[str, list[str]]) -> Request:
    target = f"/v1.43{path}?filters={quote(json.dumps(filters))}"
    return admit(parse("GET", target, b"", ""), RuleContext(Policy("own"), lambda _: None))


@pytest.mark.parametrize("filters", [{"label": [OWN]}, {"label": [OWN, "another"]}, {"name": [SANDBOXES]}])
def test_volumes_of_sandboxes_are_listed(filters: dict[str, list[str]]) -> None:
    assert json.loads(listed("/volumes", filters).query["filters"]) == filters


@pytest.mark.parametrize(
    ("path", "filters"),
    [
        ("/volumes", {"name": [SANDBOXES, "."]}),
        ("/volumes", {"name": ["^a"]}),
        ("/volumes", {"label": [f"{INSTALLATION_LABEL}=other"]}),
        ("/containers/json", {"name": [SANDBOXES]}),
    ],
)
def test_other_lists_are_refused(path: str, filters: dict[str, list[str]]) -> None:
    """The engine lists what has all of the labels, but any of the names."""
    with pytest.raises(RequestRefused):
        listed(path, filters)
