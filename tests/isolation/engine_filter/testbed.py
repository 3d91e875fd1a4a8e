"""A program with a worker's access to the engine filter. The control uses the engine's own socket."""

from dataclasses import dataclass
from typing import Any

from shared.ids import new_id
from tests.services.engine import TINY_IMAGE
from tests.services.engine_socket import EngineSocket
from worker.engine.confinement import SECCOMP
from worker.engine.docker_engine import INSTALLATION_LABEL

OWN, OTHER = "installation-of-the-worker", "another-installation"
Body = dict[str, Any]


@dataclass(frozen=True)
class Worker:
    """The two sockets of the engine: the filter's, and the engine's own as a control."""

    filtered: EngineSocket
    straight: EngineSocket

    def body(self, name: str) -> Body:
        """The body of a container as the worker creates it."""
        return {
            "Image": TINY_IMAGE,
            "Cmd": ["--host", "0.0.0.0", "--port", "8000"],
            "Labels": {INSTALLATION_LABEL: OWN},
            "ExposedPorts": {"8000/tcp": {}},
            "HostConfig": {
                "Binds": [f"{name}:/workspace:rw"],
                "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges:true", f"seccomp={SECCOMP}"],
                "Memory": 64 * 1024**2,
                "MemorySwap": 64 * 1024**2,
                "NanoCpus": 10**9,
                "PidsLimit": 64,
                "Init": True,
                "NetworkMode": "default",
            },
        }


def name_container() -> str:
    return f"aw-{new_id()}"


def create(worker: Worker, name: str, installation: str) -> str:
    body = worker.body(name) | {"Labels": {INSTALLATION_LABEL: installation}}
    volume = {"Name": name, "Labels": body["Labels"]}
    assert worker.straight.send("POST", "/volumes/create", volume).status == 201
    assert worker.straight.send("POST", f"/containers/create?name={name}", body).status == 201
    return name


def start(worker: Worker, name: str, installation: str) -> str:
    create(worker, name, installation)
    assert worker.straight.send("POST", f"/containers/{name}/start").status == 204
    return name


def assert_refused(worker: Worker, method: str, target: str, body: Any, *, control: int) -> None:
    refused = worker.filtered.send(method, target, body)
    assert (refused.status, "engine filter" in refused.read()["message"]) == (403, True)
    assert worker.straight.send(method, target, body).status == control
