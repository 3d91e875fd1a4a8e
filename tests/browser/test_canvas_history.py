"""The web UI shows the whole history of a conversation, whose pages are short where its events are large."""

from datetime import timedelta
from typing import Any

import pytest
from playwright.sync_api import Page

from shared.clock import now
from shared.models import Conversation, Event
from tests.browser.site import CANVAS, HOST
from tests.browser.test_canvas import of
from tests.factories import make_conversation, make_sandbox
from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.engine import TINY_IMAGE
from tests.waiting import eventually

# Three pages: one of 50 such events would exceed `MAX_PAGE_BYTES`.
MESSAGES, BYTES = 100, 200_000
# No server listens there. The web UI shows a conversation whose agent server has an address.
NOWHERE = [{"name": "AGENT_SERVER", "url": "http://127.0.0.1:1", "port": 8000}]
# A place in the list of messages.
CHAT = (700, 400)


@pytest.fixture
def service(installed: Deployment) -> Deployment:
    """The service's API with the web UI, without a worker."""
    installed.prepare(TINY_IMAGE)
    installed.start_api(AW_CANVAS_DIR=str(CANVAS))
    return installed


@pytest.fixture
def conversation(service: Deployment, alice: Client) -> Conversation:
    """A conversation with large events. The web UI shows none to a user without settings."""
    assert alice.post("/api/settings", json={"llm_model": "openai/note-taker"}).status_code == 200
    sandbox = make_sandbox(service.database, alice.user, exposed_urls=NOWHERE)
    conversation = make_conversation(service.database, alice.user, sandbox, execution_status="finished")
    with service.database.transaction() as session:
        session.add_all(message(conversation, number) for number in range(MESSAGES))
    return conversation


def message(conversation: Conversation, number: int) -> Event:
    at = now() - timedelta(minutes=MESSAGES - number)
    text = {"type": "text", "text": f"message {number}"}
    body: dict[str, Any] = {
        "id": f"event-{number}",
        "kind": "MessageEvent",
        "source": "user",
        "timestamp": at.replace(tzinfo=None).isoformat(),
        "llm_message": {"role": "user", "content": [text]},
        "padding": "x" * BYTES,
    }
    return Event(conversation_id=conversation.id, id=body["id"], kind=body["kind"], timestamp=at, body=body)


def sign_in(page: Page, service: Deployment, alice: Client, path: str) -> None:
    """Log in, which leads to a page."""
    page.goto(f"http://{HOST}:{service.port}/login?returnTo={path}")
    page.fill('[name="api_key"]', alice.user.key)
    page.click("button")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_history_of_large_events_is_complete(
    service: Deployment, alice: Client, conversation: Conversation, page: Page
) -> None:
    sign_in(page, service, alice, "/")
    page.wait_for_selector(of("home-chat-launcher"))
    page.goto(f"http://{HOST}:{service.port}/conversations/{conversation.id}", wait_until="domcontentloaded")
    shown = page.locator(of("user-message"))
    shown.first.wait_for()

    def shows_all() -> bool:
        page.mouse.move(*CHAT)
        page.mouse.wheel(0, -100_000)
        return shown.count() == MESSAGES

    eventually(shows_all, deadline_seconds=60)
    assert shown.first.inner_text() == "message 0"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_conversation_is_shown_after_a_login(
    service: Deployment, alice: Client, conversation: Conversation, page: Page
) -> None:
    """The web UI learns of the user's organization only then."""
    sign_in(page, service, alice, f"/conversations/{conversation.id}")
    assert page.locator(of("user-message")).first.inner_text(timeout=60_000).startswith("message ")
