"""The web UI in a browser: log in, start a conversation, watch the agent, stop it, resume it, show its changes."""

import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from deploy.demo.scripted_model import ScriptedModel
from tests import effort
from tests.browser.pictures import take_picture
from tests.browser.site import CANVAS, HOST
from tests.fixtures.model import MODEL_KEY
from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.waiting import eventually

# In milliseconds. A few hundred would suffice on an idle machine, but other tests run concurrently.
SOON = 90_000
START = 240_000
# For each change, one run is enough: contract tests cover the stop of a second run.
RUNS = effort.choose(quick=1, change=1, thorough=2)


def of(test_id: str) -> str:
    return f'[data-testid="{test_id}"]'


@pytest.mark.timeout(900)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_user_completes_a_session_in_the_browser(
    service: Deployment, model: ScriptedModel, page: Page, requested: list[str], blocked: list[str], tmp_path: Path
) -> None:
    assert (CANVAS / "index.html").exists(), "deploy/setup test unpacks the web UI"
    origin = f"http://{HOST}:{service.port}"
    with service.user("alice") as alice:
        settings = {"llm_model": "openai/note-taker", "llm_api_key": MODEL_KEY, "llm_base_url": model.base_url}
        assert alice.post("/api/settings", json=settings).status_code == 200

        sign_in(page, origin, alice)
        start(page, "Write notes, then rest.")
        conversation = eventually(lambda: read_conversation(alice), deadline_seconds=240)
        for times in range(1, RUNS + 1):
            if times > 1:
                send_message(page, "Once more.")
            watch_and_stop(page, alice, times)
            go_on(page, alice, times)
        show_changes(page)
        download(page, tmp_path, str(conversation["id"]))
    assert_no_foreign_request(requested, origin)
    assert blocked == []


def sign_in(page: Page, origin: str, alice: Client) -> None:
    page.goto(f"{origin}/settings/llm", wait_until="domcontentloaded")
    assert page.url == f"{origin}/login?returnTo=/settings/llm"
    take_picture(page, "01-login")
    page.fill('[name="api_key"]', alice.user.key)
    page.click("button")
    page.wait_for_url(f"{origin}/settings/llm")
    # Leaving the page earlier would abort requests for modules, and the web UI would then reload its page.
    page.wait_for_selector("text=Available Profiles")
    page.goto(origin, wait_until="domcontentloaded")
    page.wait_for_selector(of("home-chat-launcher"))
    take_picture(page, "02-home")


def start(page: Page, text: str) -> None:
    type_message(page, text)
    page.wait_for_url("**/conversations/*", timeout=START)
    page.wait_for_selector(of("interactive-chat-box"), timeout=START)
    expect(page.locator(of("user-message")).first).to_contain_text(text, timeout=START)


def type_message(page: Page, text: str) -> None:
    page.click(of("chat-input"))
    page.keyboard.press("Control+A")
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def send_message(page: Page, text: str) -> None:
    type_message(page, text)
    expect(page.locator(of("user-message")).last).to_contain_text(text, timeout=SOON)


def watch_and_stop(page: Page, alice: Client, times: int) -> None:
    """Watch the agent during an action, and stop it during that action."""
    try:
        page.wait_for_selector(':text("rest for a while"):visible', timeout=START)
    except PlaywrightTimeout:
        raise AssertionError(
            f"the web UI does not show it; the agent server has reported {event_sequence(alice)}"
        ) from None
    eventually(lambda: read_conversation(alice)["execution_status"] == "running", deadline_seconds=90)
    take_picture(page, f"03-at-work-{times}")
    page.locator(f"{of('stop-button')}:visible").first.click()
    eventually(lambda: read_conversation(alice)["execution_status"] == "paused", deadline_seconds=90)
    expect(page.locator(of("play-button")).first).to_be_visible(timeout=SOON)
    assert read_conversation(alice)["sandbox_status"] == "RUNNING"
    take_picture(page, f"04-stopped-{times}")


def go_on(page: Page, alice: Client, times: int) -> None:
    page.locator(of("play-button")).first.click()
    eventually(lambda: read_conversation(alice)["execution_status"] == "finished", deadline_seconds=90)
    expect(page.get_by_text("All is done.")).to_have_count(times, timeout=SOON)
    take_picture(page, f"05-done-{times}")


def show_changes(page: Page) -> None:
    page.locator(of("right-panel-toggle")).first.click()
    page.locator(of("conversation-tab-commits")).first.click()
    page.locator(of("uncommitted-changes-row-toggle")).first.click()
    page.locator(of("file-diff-viewer-outer")).first.click(position={"x": 12, "y": 12})
    editor = page.locator(".monaco-diff-editor").first
    expect(editor).to_be_visible(timeout=SOON)
    expect(editor).to_contain_text("two", timeout=SOON)
    take_picture(page, "06-changes")
    page.locator(of("conversation-tab-files")).first.click()
    # Until it is refreshed, the web UI shows a list from before the agent wrote the file.
    eventually(lambda: is_listed(page, "notes.txt"), deadline_seconds=90, interval_seconds=1)
    take_picture(page, "07-files")


def is_listed(page: Page, name: str) -> bool:
    """Whether the panel lists the file; if not, it is refreshed."""
    if page.locator(of(f"file-tree-file-{name}")).is_visible():
        return True
    page.get_by_role("button", name="Refresh files").click()
    return False


def download(page: Page, directory: Path, conversation_id: str) -> None:
    page.locator(of("chat-pane-header") + " " + of("ellipsis-button")).click()
    with page.expect_download() as downloading:
        page.locator(of("download-trajectory-button")).first.click()
    archive = directory / "conversation.zip"
    downloading.value.save_as(archive)
    with zipfile.ZipFile(archive) as opened:
        assert "meta.json" in opened.namelist()
        assert len(opened.namelist()) > 5
    assert conversation_id in downloading.value.suggested_filename


def read_conversation(alice: Client) -> dict[str, object]:
    found: list[dict[str, object]] = alice.read("/api/v1/app-conversations/search")["items"]
    return found[0] if found else {}


def event_sequence(alice: Client) -> list[tuple[object, object]]:
    """The timestamps and kinds of the stored events."""
    conversation_id = read_conversation(alice)["id"]
    events = alice.read(f"/api/v1/conversation/{conversation_id}/events/search")["items"]
    return [(event["timestamp"], event["kind"]) for event in events]


def assert_no_foreign_request(requested: list[str], origin: str) -> None:
    own = urlsplit(origin).netloc
    foreign = {url for url in requested if urlsplit(url).scheme not in ("data", "blob") and urlsplit(url).netloc != own}
    assert foreign == set()
    assert any(url.startswith("ws://") and "/sandbox/" in url for url in requested)
    assert any("/monaco/vs/" in url for url in requested)
