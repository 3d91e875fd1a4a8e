"""Flower as `make run` starts it: its addresses, its content and its end."""

import re
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.secret_search import Place, assert_hidden, family
from tests.services import http
from tests.services.engine import TINY_IMAGE
from tests.services.ports import Port
from tests.services.private_engine import PrivateEngine
from tests.services.supervised import SupervisedService, running_supervised
from tests.waiting import eventually

# An image that `make run` does not build by itself.
IMAGE = "flower/tiny:1"
SANDBOXES = "/api/v1/sandboxes"
LISTENING = "0A"  # the state in /proc/net/tcp
CANARIES = {"model key": "canary-model-key-of-flower", "custom secret": "canary-custom-secret-of-flower"}


@dataclass(frozen=True)
class Installation:
    """The service under its supervisor, with Flower."""

    service: SupervisedService
    flower_port: int

    @property
    def flower(self) -> str:
        return f"http://127.0.0.1:{self.flower_port}/admin/flower"

    @property
    def login(self) -> tuple[str, str]:
        return "flower", (self.service.var / "flower.password").read_text().strip()

    def is_shown(self) -> bool:
        """Whether Flower responds."""
        try:
            return (self.service.var / "flower.password").exists() and self.page("").status_code == 200
        except httpx.TransportError:
            return False

    def page(self, path: str, **options: Any) -> httpx.Response:
        """One of Flower's pages."""
        return http.get(f"{self.flower}/{path}", auth=self.login, timeout=5, **options)

    def log(self) -> str:
        return self.service.log.read_text()


@pytest.fixture
def installation(engine: PrivateEngine) -> Iterator[Installation]:
    engine.docker("tag", TINY_IMAGE, IMAGE)
    with (
        Port() as port,
        running_supervised(engine, "flower=1", AW_FLOWER_PORT=str(port), AW_DEFAULT_SANDBOX_IMAGE=IMAGE) as service,
    ):
        found = Installation(service, port)
        eventually(found.is_shown, interval_seconds=0.2)
        yield found


@pytest.mark.nightly  # `tests/deploy/service/test_flower.py` starts Flower for each change
def test_flower_shows_jobs_by_name_on_loopback_alone_and_stops(installation: Installation) -> None:
    # Other processes may use the port on other addresses of the machine; Flower's processes must not.
    assert addresses_of(installation) == {("127.0.0.1", installation.flower_port)}
    with installation.service.client() as client:
        settings = {
            "llm_model": "openai/none",
            "llm_api_key": CANARIES["model key"],
            "secrets_store": {"custom_secrets": {"KEY": {"secret": CANARIES["custom secret"]}}},
        }
        assert client.post("/api/settings", json=settings).status_code == 200
        started = client.post("/api/v1/app-conversations", json={}, params={"wait": 60}).json()
        sandbox_id = client.post(SANDBOXES, params={"wait": 60}).json()["id"]
        session_key = client.get(f"{SANDBOXES}/{sandbox_id}").json()["session_api_key"]
        for verb in ("pause", "resume"):
            assert client.post(f"{SANDBOXES}/{sandbox_id}/{verb}", params={"wait": 60}).is_success
        assert client.delete(f"{SANDBOXES}/{sandbox_id}", params={"wait": 60}).is_success
    wanted = {"conversations.start", *(f"sandboxes.{verb}" for verb in ("start", "pause", "resume", "delete"))}
    shown = eventually(lambda: tasks_of(installation, wanted))
    secrets = CANARIES | {"API key": installation.service.key, "session key": session_key}
    assert started["status"] == "ERROR"  # the tiny image does not support conversations: a failed job is shown too
    assert_hidden(secrets, Place("Flower", shown, control=sandbox_id))

    installation.service.process.send_signal(signal.SIGTERM)
    assert installation.service.process.wait(90) == 0
    assert installation.login[1] not in installation.log()
    assert re.search(r"stopped: flower\.1 \((exit status 0|terminated by SIGTERM)\)", installation.log())
    with socket.socket() as probe:
        # The port is reserved but free: the bind fails if a server listens there.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", installation.flower_port))


def tasks_of(installation: Installation, wanted: set[str]) -> str:
    """Flower's pages about every job, as text; empty until it has jobs of all these names."""
    overview = installation.page("tasks/datatable", params=DATATABLE).json()
    names = {task["name"] for task in overview["data"]}
    if not wanted <= names:
        return ""
    pages = [installation.page(f"task/{task['uuid']}").text for task in overview["data"]]
    workers = [installation.page(page).text for page in ("", "workers", "tasks", "broker")]
    return "\n".join([str(overview), *pages, *workers])


# The request of Flower's job page to its own server.
DATATABLE = {
    "draw": 1,
    "start": 0,
    "length": 100,
    "search[value]": "",
    "order[0][column]": 0,
    "order[0][dir]": "asc",
    "columns[0][data]": "name",
}


def addresses_of(installation: Installation) -> set[tuple[str, int]]:
    """The addresses on which Flower's processes listen."""
    inodes = {inode for pid in family(flower_pid(installation)) for inode in sockets_of(pid)}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and fields[9] in inodes:
                found.add(read_address(fields[1]))
    return found


def flower_pid(installation: Installation) -> int:
    [found] = re.findall(r"spawned: 'flower\.1' with pid (\d+)", installation.log())
    return int(found)


def sockets_of(pid: int) -> list[str]:
    links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
    return [link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:[")]


def read_address(text: str) -> tuple[str, int]:
    address, _, port = text.partition(":")
    packed = b"".join(bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8))
    family_of = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    return socket.inet_ntop(family_of, packed), int(port, 16)
