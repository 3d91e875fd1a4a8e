"""A browser under test control, and the service with the unpacked web UI."""

from collections.abc import Iterator

import pytest
import structlog
from playwright.sync_api import Browser, Page, sync_playwright

from deploy.demo.scripted_model import ScriptedModel
from tests import effort
from tests.browser.pictures import take_picture
from tests.browser.site import ARGUMENTS, CANVAS, CHROMIUM
from tests.services.deployment import Deployment
from tests.services.engine import SANDBOX_IMAGE
from tests.services.second_machine import SecondMachine, running_second_machine

log = structlog.get_logger()

HERE, ELSEWHERE = "here", "elsewhere"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test with sandboxes on this machine; at night, also with sandboxes on a second node."""
    if "machine" in metafunc.fixturenames:
        nodes = effort.choose(quick=(HERE,), change=(HERE,), thorough=(HERE, ELSEWHERE))
        metafunc.parametrize("machine", nodes, indirect=True)


@pytest.fixture
def machine(request: pytest.FixtureRequest) -> Iterator[SecondMachine | None]:
    """The second machine if the sandboxes run on it; otherwise None."""
    if request.param == HERE:
        yield None
        return
    with running_second_machine([SANDBOX_IMAGE]) as machine:
        yield machine


@pytest.fixture
def service(installed: Deployment, machine: SecondMachine | None, model: ScriptedModel) -> Iterator[Deployment]:
    """The running service with the web UI."""
    installed.prepare(SANDBOX_IMAGE)
    if machine:
        machine.open_api(installed)
    installed.start_api(AW_CANVAS_DIR=str(CANVAS))
    installed.start_worker()
    if machine:
        machine.join(installed, model_server=model.url.removeprefix("http://"))
    yield installed
    if machine:
        machine.assert_used(installed)
        installed.stop()


@pytest.fixture
def browser() -> Iterator[Browser]:
    """Debian's Chromium, for one test only: Playwright's event loop would disturb those of other tests."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def requested() -> list[str]:
    """The URLs of all requests of the web UI."""
    return []


@pytest.fixture
def blocked() -> list[str]:
    """The violations of the web UI's Content Security Policy."""
    return []


@pytest.fixture
def page(browser: Browser, requested: list[str], blocked: list[str]) -> Iterator[Page]:
    """An empty tab of a browser without any state."""
    # Without reduced motion, the CPU would draw spinners sixty times a second.
    context = browser.new_context(
        viewport={"width": 1440, "height": 900}, accept_downloads=True, reduced_motion="reduce"
    )
    page = context.new_page()
    page.set_default_timeout(120_000)
    context.on("request", lambda request: requested.append(request.url))
    _log_failures(page)
    page.on("websocket", lambda socket: requested.append(socket.url))
    context.on(
        "console", lambda message: blocked.append(message.text) if "Content Security Policy" in message.text else None
    )
    try:
        yield page
    finally:
        take_picture(page, "99-at-the-end")
        context.close()


def _log_failures(page: Page) -> None:
    """Log failed requests, errors and navigations, which explain why a page does not show the expected content."""
    page.on("requestfailed", lambda request: log.info("request_failed", url=request.url, why=request.failure))
    page.on("pageerror", lambda error: log.info("page_error", error=str(error)))
    page.on("framenavigated", lambda frame: log.info("navigated", url=frame.url))
