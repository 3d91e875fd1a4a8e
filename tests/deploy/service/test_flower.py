"""Flower's login: no page without the password, and none for a website whose name resolves to this machine."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.services import http, processes
from tests.services.directories import REPOSITORY
from tests.services.ports import Port
from tests.services.valkey import Valkey
from tests.waiting import eventually

PAGES = ["", "tasks", "broker", "metrics", "healthcheck", "api/workers", "static/css/flower.css", "no-such-page"]


@dataclass(frozen=True)
class RunningFlower:
    """A process of Flower, and its var directory."""

    url: str
    var: Path
    pid: int

    @property
    def password(self) -> str:
        return (self.var / "flower.password").read_text().strip()

    def get(self, page: str, **options: Any) -> httpx.Response:
        return http.get(f"{self.url}/{page}", timeout=20, **options)

    def is_up(self) -> bool:
        try:
            return self.get("").status_code == 401
        except httpx.TransportError:
            return False


@pytest.fixture(scope="module")
def flower(valkey_server: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFlower]:
    """One process for all of these tests, because its imports take a second and the tests change nothing."""
    valkey_server.start()
    tmp_path = tmp_path_factory.mktemp("flower")
    with Port() as port:
        settings = {
            "AW_REDIS_URL": valkey_server.url,
            "AW_VAR_DIR": str(tmp_path),
            "AW_FLOWER_PORT": str(port),
            "AW_FLOWER_HOSTS": "proxy.example , flower.example",
            "PYTHONPATH": str(REPOSITORY),
        }
        environment = [f"{name}={value}" for name, value in settings.items()]
        command = ["env", *environment, sys.executable, "-m", "deploy.service.flower"]
        process = processes.start(command, tmp_path / "log")
        found = RunningFlower(f"http://127.0.0.1:{port}/admin/flower", tmp_path, process.pid)
        try:
            eventually(lambda: process.poll() is not None or found.is_up(), deadline_seconds=60)
            assert process.poll() is None, (tmp_path / "log").read_text()
            yield found
        finally:
            processes.stop(process)


def test_every_page_requires_the_password(flower: RunningFlower) -> None:
    right = ("flower", flower.password)
    without = {page: flower.get(page).status_code for page in PAGES}
    assert without == dict.fromkeys(PAGES, 401)
    assert flower.get("").headers["www-authenticate"].startswith("Basic ")
    for wrong in [("flower", "flower"), ("admin", flower.password), ("flower", "")]:
        assert flower.get("", auth=wrong).status_code == 401
    assert flower.get("", headers={"Authorization": "Basic !"}).status_code == 401
    given = {page: flower.get(page, auth=right).status_code for page in PAGES}
    assert given == dict.fromkeys(PAGES, 200) | {"no-such-page": 404}


def test_website_that_resolves_to_this_machine_is_refused(flower: RunningFlower) -> None:
    right = ("flower", flower.password)
    for host, status in {
        "evil.example": 403,
        "evil.example:5555": 403,
        "localhost": 200,
        "FLOWER.example": 200,
        "proxy.example": 200,
    }.items():
        assert flower.get("", auth=right, headers={"Host": host}).status_code == status


def test_password_is_in_a_private_file_only(flower: RunningFlower) -> None:
    file = flower.var / "flower.password"
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(flower.password) >= 32
    for name in ("cmdline", "environ"):
        assert flower.password.encode() not in Path(f"/proc/{flower.pid}/{name}").read_bytes()
    assert flower.password not in (flower.var / "log").read_text()


def test_actions_are_rejected(flower: RunningFlower) -> None:
    for path in ("api/worker/shutdown/worker@node", "api/task/send-task/sandboxes.delete"):
        response = http.post(f"{flower.url}/{path}", auth=("flower", flower.password), timeout=20)
        assert response.status_code == 403
