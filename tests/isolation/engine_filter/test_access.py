"""A worker has access to its installation's containers, and to nothing else of the engine.

Each refused request is repeated at the engine's own socket, which executes it.
"""

import io
import tarfile
from typing import Any

import pytest

from tests.isolation.engine_filter.testbed import OTHER, OWN, Worker, assert_refused, create, name_container, start
from tests.services.engine import TINY_IMAGE
from tests.services.private_engine import PrivateEngine
from worker.engine.docker_engine import INSTALLATION_LABEL

ON_CONTAINERS: dict[str, tuple[str, str, Any, int]] = {
    "inspect": ("GET", "/json", None, 200),
    "read files": ("GET", "/archive?path=/etc", None, 200),
    "write files": ("PUT", "/archive?path=/", b"\0" * 1024, 200),
    "read logs": ("GET", "/logs?stdout=1", None, 200),
    "list processes": ("GET", "/top", None, 200),
    "read figures": ("GET", "/stats?stream=0&one-shot=1", None, 200),
    "see changes": ("GET", "/changes", None, 200),
    "export": ("GET", "/export", None, 200),
    "execute a command": ("POST", "/exec", {"Cmd": ["id"], "User": "0", "Privileged": True}, 201),
    "change limits": ("POST", "/update", {"PidsLimit": 100}, 200),
    "rename": ("POST", "/rename?name=aw-renamed", None, 204),
    "pause": ("POST", "/pause", None, 204),
    "stop": ("POST", "/stop?t=0", None, 204),
    "kill": ("POST", "/kill", None, 204),
    "remove": ("DELETE", "?force=1", None, 204),
}
# Attacks that need a running container.
RUNNING = {"list processes", "read figures", "execute a command", "pause", "stop", "kill"}
# The requests of workers for their own containers.
OWN_WORK = {"inspect", "read files", "write files", "read logs", "pause", "stop", "kill", "remove"}


@pytest.mark.parametrize("attack", ON_CONTAINERS)
def test_containers_of_other_installations_are_inaccessible(worker: Worker, attack: str) -> None:
    name = make(worker, OTHER, attack)
    method, suffix, body, control = ON_CONTAINERS[attack]
    assert_refused(worker, method, f"/containers/{name}{suffix}", body, control=control)


@pytest.mark.parametrize("attack", ON_CONTAINERS)
def test_own_containers_accept_requests_of_a_worker_only(worker: Worker, attack: str) -> None:
    name = make(worker, OWN, attack)
    method, suffix, body, control = ON_CONTAINERS[attack]
    if attack in OWN_WORK:
        assert worker.filtered.send(method, f"/containers/{name}{suffix}", body).status == control
    else:
        assert_refused(worker, method, f"/containers/{name}{suffix}", body, control=control)


def make(worker: Worker, installation: str, attack: str) -> str:
    """Create a container for an attack; return its name."""
    return (start if attack in RUNNING else create)(worker, name_container(), installation)


def test_container_is_not_found_by_its_id(worker: Worker) -> None:
    name = create(worker, name_container(), OTHER)
    found = worker.straight.send("GET", f"/containers/{name}/json").read()["Id"]
    assert_refused(worker, "GET", f"/containers/{found}/archive?path=/etc", None, control=200)


def test_volumes_of_other_installations_are_inaccessible(worker: Worker) -> None:
    name = name_container()
    worker.straight.send("POST", "/volumes/create", {"Name": name, "Labels": {INSTALLATION_LABEL: OTHER}})
    assert_refused(worker, "GET", f"/volumes/{name}", None, control=200)
    assert_refused(worker, "DELETE", f"/volumes/{name}", None, control=204)


def empty_build() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("Dockerfile")
        content = b"FROM scratch\nLABEL a=b\n"
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


ELSEWHERE: dict[str, tuple[str, str, Any, int]] = {
    "list all containers": ("GET", "/containers/json?all=1", None, 200),
    "list another installation": (
        "GET",
        f'/containers/json?all=1&filters={{"label":["{INSTALLATION_LABEL}={OTHER}"]}}',
        None,
        200,
    ),
    "list all volumes": ("GET", "/volumes", None, 200),
    "list volumes of any name": ("GET", '/volumes?filters={"name":["^aw-","."]}', None, 200),
    "list all networks": ("GET", "/networks", None, 200),
    "list all images": ("GET", "/images/json", None, 200),
    "follow all events": ("GET", "/events?since=1&until=2", None, 200),
    "measure the disk": ("GET", "/system/df", None, 200),
    "list plugins": ("GET", "/plugins", None, 200),
    "build an image": ("POST", "/build", empty_build(), 200),
    "rename an image": ("POST", f"/images/{TINY_IMAGE}/tag?repo=attack&tag=1", None, 201),
    "import an image": ("POST", "/images/create?fromSrc=-&repo=attack&tag=2", empty_build(), 200),
    "save an image": ("GET", "/images/attack:1/get", None, 200),
    "remove an image": ("DELETE", "/images/attack:1", None, 200),
    "remove stopped containers": ("POST", "/containers/prune", None, 200),
    "another way to write a path": ("GET", "/containers/../version", None, 301),
}


@pytest.mark.parametrize("attack", ELSEWHERE)
def test_worker_reaches_no_other_part_of_the_engine(worker: Worker, engine: PrivateEngine, attack: str) -> None:
    method, target, body, control = ELSEWHERE[attack]
    engine.docker("tag", TINY_IMAGE, "attack:1")
    assert_refused(worker, method, target, body, control=control)
