"""The operators' pages in a browser: they follow changes, act on sandboxes and nodes, and show Flower."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from shared.clock import now
from shared.models import Sandbox, SandboxTransition
from shared.states import Desired, NodeStatus, Reason, Status
from shared.users import roles
from tests.browser.pictures import take_picture
from tests.factories import ApiUser, make_node, make_sandbox
from tests.services import processes
from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.directories import REPOSITORY
from tests.services.engine import TINY_IMAGE
from tests.services.ports import Port

# In milliseconds, with an allowance for concurrent tests.
SOON = 90_000
HOSTILE = "<img src=x onerror=\"document.title = 'ran'\"><script>document.title = 'ran'</script>"
LOG = f"""the container exited with exit code 1
Traceback (most recent call last):
  File "/workspace/project/server.py", line 12, in <module>
    raise RuntimeError("no space left on device")
RuntimeError: no space left on device {HOSTILE}"""


@pytest.fixture
def service(installed: Deployment, tmp_path: Path) -> Iterator[Deployment]:
    """The service with a worker, tiny sandboxes, and Flower."""
    installed.prepare(TINY_IMAGE)
    with Port() as port:
        installed.environment["AW_FLOWER_PORT"] = str(port)
        installed.start()
        environment = installed.environment | {"PYTHONPATH": str(REPOSITORY)}
        flower = processes.start_module(["deploy.service.flower"], environment, tmp_path / "flower.log")
        try:
            yield installed
        finally:
            processes.stop(flower)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_operator_views_and_changes_sandboxes(
    service: Deployment, alice: Client, page: Page, blocked: list[str]
) -> None:
    fill(service, alice.user)
    with service.user("olivia") as olivia:
        with service.database.transaction() as session:
            roles.grant_admin(session, "olivia")
        sign_in(page, service, olivia)
    expect(page.locator("#live.on")).to_be_visible(timeout=SOON)
    take_picture(page, "admin-overview")

    sandbox_id = watch_a_sandbox_start(page, service, alice)
    pause_sandbox(page, service, sandbox_id)
    cordon_the_node(page, service)
    check_jobs_in_flower(page, service, alice, sandbox_id)
    delete_sandbox(page, service, sandbox_id)

    page.emulate_media(color_scheme="dark")
    page.goto(f"{service.url}/admin")
    take_picture(page, "admin-overview-dark")
    assert page.title() == "Overview · Agent Workspace"
    assert blocked == []


def sign_in(page: Page, service: Deployment, user: Client) -> None:
    page.goto(f"{service.url}/admin")
    page.fill('[name="api_key"]', user.user.key)
    page.click("button")
    page.wait_for_url(f"{service.url}/admin")


def watch_a_sandbox_start(page: Page, service: Deployment, alice: Client) -> str:
    """The sandbox's row appears without a click, and its page updates itself."""
    page.goto(f"{service.url}/admin/sandboxes?user=alice")
    expect(page.locator("#live.on")).to_be_visible(timeout=SOON)
    sandbox_id = str(alice.post("/api/v1/sandboxes").json()["id"])
    row = page.locator("tr", has=page.locator(f'a[title="{sandbox_id}"]'))
    expect(row.locator(".status")).to_have_text("RUNNING", timeout=SOON)
    row.locator("a.id").click()
    expect(page.locator(".legend")).to_contain_text("agent server boots", timeout=SOON)
    take_picture(page, "admin-sandbox")
    return sandbox_id


def pause_sandbox(page: Page, service: Deployment, sandbox_id: str) -> None:
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("dl .status").first).to_have_text("PAUSED · frozen", timeout=SOON)
    assert page.url == f"{service.url}/admin/sandboxes/{sandbox_id}"


def cordon_the_node(page: Page, service: Deployment) -> None:
    page.goto(f"{service.url}/admin/nodes")
    row = page.locator("tr", has_text=next(iter(service.engines)))
    row.get_by_role("button", name="Cordon").click()
    expect(row.locator(".status")).to_have_text("CORDONED", timeout=SOON)
    take_picture(page, "admin-nodes")
    row.get_by_role("button", name="Uncordon").click()
    expect(row.locator(".status")).to_have_text("READY", timeout=SOON)


def check_jobs_in_flower(page: Page, service: Deployment, alice: Client, sandbox_id: str) -> None:
    page.get_by_role("link", name="Jobs").click()
    subject = page.get_by_text(f"{alice.user.name} · sandbox {sandbox_id[:8]}").first
    expect(subject).to_be_visible(timeout=SOON)
    take_picture(page, "admin-flower")
    page.get_by_role("link", name="Workers").click()
    expect(page.get_by_text(f"@{next(iter(service.engines))}").first).to_be_visible(timeout=SOON)


def delete_sandbox(page: Page, service: Deployment, sandbox_id: str) -> None:
    """Actions need a confirmation, and the audit page lists all of them."""
    page.goto(f"{service.url}/admin/sandboxes/{sandbox_id}")
    page.get_by_text("Delete", exact=True).click()
    page.get_by_role("button", name="Yes, delete").click()
    expect(page.locator("dl .status").first).to_have_text("DELETED", timeout=SOON)
    page.goto(f"{service.url}/admin/audit")
    for action in ("delete", "uncordon", "cordon", "pause", "grant-admin"):
        expect(page.get_by_role("cell", name=action, exact=True)).to_be_visible()


def fill(service: Deployment, alice: ApiUser) -> None:
    """Rows that no worker changes: settled sandboxes of another node."""
    make_node(
        service.database, "node-b", status=NodeStatus.CORDONED, capacity=8, heartbeat_at=now() - timedelta(minutes=9)
    )
    elsewhere: dict[str, Any] = {"node_id": "node-b", "spec_id": TINY_IMAGE}
    for minutes in range(1, 4):
        add(service, make_sandbox(service.database, alice, **elsewhere), minutes * 7)
    add(service, make_sandbox(service.database, alice, status=Status.PAUSED, **elsewhere), 50)
    failed: dict[str, Any] = {"reason": Reason.EXIT_CODE, "detail": LOG, "desired": Desired.RUNNING}
    add(service, make_sandbox(service.database, alice, status=Status.ERROR, **elsewhere, **failed), 12)
    waiting: dict[str, Any] = {"due_at": now() - timedelta(minutes=3), "updated_at": now() - timedelta(minutes=3)}
    make_sandbox(service.database, alice, status=Status.STARTING, **elsewhere, **waiting)


def add(service: Deployment, sandbox: Sandbox, minutes: int) -> None:
    """Give a sandbox a history that began `minutes` ago."""
    began = now() - timedelta(minutes=minutes)
    phases = {"queue": 0.08, "create": 0.6, "start": 0.4, "health": 2.9}
    with service.database.transaction() as session:
        session.add(SandboxTransition(sandbox_id=sandbox.id, to_status=Status.STARTING, at=began))
        after = began + timedelta(seconds=4)
        session.add(SandboxTransition(sandbox_id=sandbox.id, to_status=sandbox.status, at=after, phases=phases))
        row = session.get_one(Sandbox, sandbox.id)
        row.created_at, row.status_changed_at = began, after
        session.add(row)
