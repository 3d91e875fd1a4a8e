"""A browser that is driven, and the whole service behind it: real sandboxes, a scripted model, the unpacked page."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from deploy.demo.scripted_model import Finish, RunCommand, Script, ScriptedModel
from tests.integration.conftest import engine, engine_of_our_own, installed
from tests.services.directories import REPOSITORY
from tests.services.engine import SANDBOX_IMAGE
from tests.services.private_engine import PrivateEngine
from tests.services.service import Service

__all__ = ["engine", "engine_of_our_own", "installed"]

# What continuous integration keeps.
PICTURES = REPOSITORY / "var" / "log" / "browser"
CANVAS = REPOSITORY / "var" / "canvas"
CHROMIUM = "/usr/bin/chromium"
# Not a loopback name: the page is stricter then, and browsers send less.
HOST = "agents.example"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    f"--host-resolver-rules=MAP {HOST} 127.0.0.1",
]
MODEL_KEY = "model-key"
PREPARE = (
    "git init -q . && git config user.name A && git config user.email a@example.com && echo one > notes.txt && "
    "git add . && git commit -qm first; echo two >> notes.txt; echo 'The notes are written'"
)
# The agent server takes a command that is silent for long for one that waits, and lets the agent go on.
REST = "for second in $(seq 900); do echo resting for $second s; sleep 1; done"
SCRIPT = Script(
    [RunCommand(PREPARE, "write the notes"), RunCommand(REST, "rest for a while"), Finish("All is done.")],
    title="Notes",
)


@pytest.fixture(scope="session")
def model(engine_of_our_own: PrivateEngine) -> Iterator[ScriptedModel]:
    """A model that works, then rests until it is interrupted, then is done; after each message anew."""
    with ScriptedModel({"openai/rester": SCRIPT}, engine_of_our_own.gateway, api_key=MODEL_KEY) as model:
        yield model


@pytest.fixture
def service(installed: Service) -> Service:
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
    page.set_default_timeout(60_000)
    context.on("request", lambda request: asked.append(request.url))
    page.on("websocket", lambda socket: asked.append(socket.url))
    context.on("console", lambda said: refused.append(said.text) if "Content Security Policy" in said.text else None)
    try:
        yield page
    finally:
        take_picture(page, "99-at-the-end")
        context.close()


def take_picture(page: Page, name: str) -> Path:
    """A screenshot, for who looks at what continuous integration has kept."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    path = PICTURES / f"{name}.png"
    page.screenshot(path=path)
    return path
