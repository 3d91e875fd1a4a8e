"""A browser that is driven, and the service with the unpacked page."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.pictures import take_picture
from tests.browser.site import ARGUMENTS, CANVAS, CHROMIUM
from tests.services.deployment import Deployment
from tests.services.engine import SANDBOX_IMAGE


@pytest.fixture
def service(installed: Deployment) -> Deployment:
    """The service, running, with the page."""
    installed.prepare(SANDBOX_IMAGE)
    installed.start_api(AW_CANVAS_DIR=str(CANVAS))
    installed.start_worker()
    return installed


@pytest.fixture
def browser() -> Iterator[Browser]:
    """Debian's Chromium; not for longer than a test: Playwright's event loop would be in the way of others'."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def asked() -> list[str]:
    """The addresses of all that the page has asked for."""
    return []


@pytest.fixture
def refused() -> list[str]:
    """What the page's policy has kept it from."""
    return []


@pytest.fixture
def page(browser: Browser, asked: list[str], refused: list[str]) -> Iterator[Page]:
    """An empty tab of a browser that knows nothing."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, accept_downloads=True)
    page = context.new_page()
    page.set_default_timeout(120_000)
    context.on("request", lambda request: asked.append(request.url))
    page.on("websocket", lambda socket: asked.append(socket.url))
    context.on("console", lambda said: refused.append(said.text) if "Content Security Policy" in said.text else None)
    try:
        yield page
    finally:
        take_picture(page, "99-at-the-end")
        context.close()
