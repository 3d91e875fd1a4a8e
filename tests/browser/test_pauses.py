"""The web UI at a loopback address: a stopped sandbox stays stopped, even if paused elsewhere, and a login ends."""

import re

import pytest
from playwright.sync_api import Page, expect

from deploy.demo.scripted_model import ScriptedModel
from tests.browser.pictures import take_picture
from tests.browser.test_canvas import SOON, START, of, read_conversation, start
from tests.fixtures.model import MODEL_KEY
from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.waiting import eventually

# The requirement is 5 s; the remainder allows for other tests on the machine.
SEEN_SECONDS = 15
# The color of the status light of a stopped sandbox.
STOPPED = "#ffffff"
RESUME = re.compile(r"/api/v1/sandboxes/[0-9a-f]+/resume$")


@pytest.mark.nightly  # `test_canvas` covers the web UI for each change
@pytest.mark.timeout(900)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_stopped_sandbox_stays_stopped(
    service: Deployment, model: ScriptedModel, page: Page, requested: list[str]
) -> None:
    origin = f"http://127.0.0.1:{service.port}"
    with service.user("alice") as alice:
        settings = {"llm_model": "openai/note-taker", "llm_api_key": MODEL_KEY, "llm_base_url": model.base_url}
        assert alice.post("/api/settings", json=settings).status_code == 200
        page.goto(f"{origin}/login")
        page.fill('[name="api_key"]', alice.user.key)
        page.click("button")
        page.goto(origin, wait_until="domcontentloaded")
        page.wait_for_selector(of("home-chat-launcher"))
        start(page, "Write notes, then rest.")
        conversation = eventually(lambda: read_conversation(alice), deadline_seconds=240)

        stop_the_agent(page, alice)
        pause_elsewhere(page, alice, requested)
        start_again(page, alice)
        stop_the_sandbox(page, alice, requested)
        open_again(page, alice, f"{origin}/conversations/{conversation['id']}")
        revoke_key(page, alice, origin)


def stop_the_agent(page: Page, alice: Client) -> None:
    page.wait_for_selector(':text("rest for a while"):visible', timeout=START)
    eventually(lambda: read_conversation(alice)["execution_status"] == "running", deadline_seconds=90)
    page.locator(f"{of('stop-button')}:visible").first.click()
    eventually(lambda: read_conversation(alice)["execution_status"] == "paused", deadline_seconds=90)
    expect(page.locator(of("play-button")).first).to_be_visible(timeout=SOON)
    # An error event exists, which the web UI must not show.
    errors = f"/api/v1/conversation/{read_conversation(alice)['id']}/events/count"
    eventually(lambda: alice.read(errors, kind__eq="AgentErrorEvent") == 1, deadline_seconds=90)
    expect(page.get_by_text("Agent error")).to_have_count(0)
    take_picture(page, "11-stopped")


def pause_elsewhere(page: Page, alice: Client, requested: list[str]) -> None:
    requested.clear()
    sandbox_id = read_conversation(alice)["sandbox_id"]
    assert alice.post(f"/api/v1/sandboxes/{sandbox_id}/pause?wait=30").status_code == 200
    light = page.locator(of("server-status-menu-trigger") + " svg").first
    eventually(lambda: STOPPED in light.evaluate("svg => svg.outerHTML"), deadline_seconds=SEEN_SECONDS)
    take_picture(page, "12-paused-elsewhere")
    stays_paused(page, alice, requested)


def start_again(page: Page, alice: Client) -> None:
    page.locator(of("server-status-menu-trigger")).hover()
    page.locator(of("start-server-button")).click()
    eventually(lambda: read_conversation(alice)["execution_status"] == "finished", deadline_seconds=120)
    expect(page.get_by_text("All is done.")).to_have_count(1, timeout=SOON)
    take_picture(page, "13-started-again")


def stop_the_sandbox(page: Page, alice: Client, requested: list[str]) -> None:
    """Stop the sandbox through the menu of the open, finished conversation."""
    requested.clear()
    page.locator(of("chat-pane-header") + " " + of("ellipsis-button")).click()
    page.get_by_text("Stop Conversation").first.click()
    confirm = page.get_by_role("button", name=re.compile("confirm|stop", re.IGNORECASE))
    if confirm.count():
        confirm.first.click()
    eventually(lambda: read_conversation(alice)["sandbox_status"] == "PAUSED", deadline_seconds=60)
    take_picture(page, "14-sandbox-stopped")
    stays_paused(page, alice, requested)


def stays_paused(page: Page, alice: Client, requested: list[str]) -> None:
    """Check that the sandbox stays paused for longer than the web UI's poll interval."""
    page.wait_for_timeout(6_000)
    assert read_conversation(alice)["sandbox_status"] == "PAUSED"
    assert [url for url in requested if RESUME.search(url)] == []


def open_again(page: Page, alice: Client, url: str) -> None:
    page.goto(url, wait_until="domcontentloaded")
    eventually(lambda: read_conversation(alice)["sandbox_status"] == "RUNNING", deadline_seconds=90)


def revoke_key(page: Page, alice: Client, origin: str) -> None:
    [key] = [key for key in alice.read("/api/keys") if key["prefix"] and alice.user.key.startswith(key["prefix"])]
    assert alice.delete(f"/api/keys/{key['id']}").status_code == 200
    page.reload(wait_until="domcontentloaded")
    page.wait_for_url(f"{origin}/login?returnTo=**", timeout=90_000)
    take_picture(page, "15-signed-out")
