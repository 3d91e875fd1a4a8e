"""Docker's descriptions of containers are interpreted correctly."""

from typing import Any

import pytest

from worker.engine.docker_formats import read_observed, read_summary

# As Docker 20.10, after a restart of its daemon, lists a container that was running when the daemon was killed.
NETWORKS = {"NetworkSettings": {"Networks": {"agent-workspace-1": {"IPAddress": "10.213.0.2"}}}}


@pytest.mark.parametrize(
    ("state", "address"),
    [("running", "10.213.0.2"), ("paused", "10.213.0.2"), ("exited", ""), ("created", ""), ("dead", "")],
)
def test_container_that_does_not_run_has_no_address(state: str, address: str) -> None:
    """Another container may have the address by now, and would get the rules of this one."""
    item: dict[str, Any] = {"Names": ["/aw-1"], "State": state, "Labels": {}, "ImageID": "1", **NETWORKS}
    assert read_summary(item).networks == {"agent-workspace-1": address}
    found: dict[str, Any] = {
        "Id": "1",
        "State": {"Status": state, "ExitCode": 0, "OOMKilled": False, "StartedAt": "0001-01-01T00:00:00Z"},
        "HostConfig": {},
        "Config": {"Labels": {}},
        **NETWORKS,
    }
    observed = read_observed(found)
    assert (observed.address, observed.networks) == (address, {"agent-workspace-1": address})
