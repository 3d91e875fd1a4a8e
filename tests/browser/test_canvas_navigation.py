"""The web UI loads a page again if a request for a part of it fails."""

import re

import pytest
from playwright.sync_api import Page, Route

from shared.models import Conversation
from tests.browser.site import CANVAS, HOST
from tests.factories import make_conversation, make_sandbox
from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.engine import TINY_IMAGE

DATABASE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def service(installed: Deployment) -> Deployment:
    """The service's API with the web UI, without a worker."""
    installed.prepare(TINY_IMAGE)
    installed.start_api(AW_CANVAS_DIR=str(CANVAS))
    return installed


@pytest.fixture
def conversation(service: Deployment, alice: Client) -> Conversation:
    """A conversation that the web UI lists."""
    sandbox = make_sandbox(service.database, alice.user)
    return make_conversation(service.database, alice.user, sandbox)


@DATABASE
@pytest.mark.parametrize("module", ["root", "entry.client"])
def test_page_is_reloaded_if_an_initial_module_cannot_be_fetched(
    service: Deployment, alice: Client, conversation: Conversation, page: Page, module: str
) -> None:
    failed = fail_twice(page, f"{module}-")
    sign_in(page, service, alice)
    page.wait_for_selector(f"text={conversation.title}")
    assert len(failed) == 2


@DATABASE
def test_later_page_is_reloaded_if_its_module_cannot_be_fetched(
    service: Deployment, alice: Client, conversation: Conversation, page: Page
) -> None:
    failed = fail_twice(page, "conversation-")
    sign_in(page, service, alice)
    page.click(f"text={conversation.title}")
    page.wait_for_url("**/conversations/*")
    page.wait_for_selector(f"text={conversation.title}")
    assert len(failed) == 2


def sign_in(page: Page, service: Deployment, user: Client) -> None:
    page.goto(f"http://{HOST}:{service.port}/login?returnTo=/")
    page.fill('[name="api_key"]', user.user.key)
    page.click("button")


def fail_twice(page: Page, prefix: str) -> list[str]:
    """Abort two requests for the module with this prefix, as Chromium does when its machine's network changes.

    Returns:
        The URLs of the aborted requests so far.
    """
    failed: list[str] = []

    def fail(route: Route) -> None:
        if len(failed) == 2:
            route.continue_()
        else:
            failed.append(route.request.url)
            route.abort("internetdisconnected")

    page.route(re.compile(rf"/assets/{re.escape(prefix)}[\w-]{{8}}\.js"), fail)
    return failed
