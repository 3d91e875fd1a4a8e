"""A sandbox's page in a signed-in browser gets no login, runs no script, and cannot use the API."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from shared.models import Sandbox
from tests.factories import make_sandbox, session_key_of
from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.engine import TINY_IMAGE
from tests.services.hostile_server import HostileServer, answering, hostile

COOKIE = b"aw_session="
# The page's script writes to the title what it could do.
PAGE = b"""<!doctype html><title>nothing</title><body><script>
document.cookie = "aw_session=tossed; path=/";
document.title = "ran";
fetch("API/api/keys", {method: "POST", credentials: "include", headers: {"Content-Type": "application/json"},
    body: '{"name": "stolen"}'}).then(answer => { document.title = "ran " + answer.status });
</script><img src="API/logout">"""


@pytest.fixture
def service(installed: Deployment) -> Deployment:
    """The service's API without a worker."""
    installed.prepare(TINY_IMAGE)
    installed.start_api()
    return installed


@pytest.fixture
def server(service: Deployment) -> Iterator[HostileServer]:
    """A server instead of an agent server, with a page that attacks the API."""
    content = PAGE.replace(b"API", service.url.encode())
    with hostile(answering(content, Content_Type="text/html", Set_Cookie="aw_session=tossed; Path=/")) as server:
        yield server


@pytest.fixture
def sandbox(service: Deployment, alice: Client, server: HostileServer) -> Sandbox:
    """A sandbox with that server."""
    urls = [{"name": "AGENT_SERVER", "url": server.url, "port": 8000}]
    return make_sandbox(service.database, alice.user, exposed_urls=urls)


def test_page_of_a_sandbox_gets_no_cookie_and_can_not_use_it(
    service: Deployment, alice: Client, page: Page, sandbox: Sandbox, server: HostileServer
) -> None:
    sign_in(page, service, alice)
    keys = count_keys(alice)
    shown = page.evaluate(f"fetch('/api/v1/sandboxes/{sandbox.id}').then(answer => answer.json())")
    assert [url["url"] for url in shown["exposed_urls"]] == [f"{service.url}/sandbox/{sandbox.id}"]

    for place in (f"{service.url}/sandbox/{sandbox.id}", f"http://127.0.0.1:{service.client_port}"):
        del server.requested[:]
        page.goto(f"{place}/page?session_api_key={session_key_of(sandbox)}")
        page.wait_for_load_state("networkidle")
        assert page.title() == "nothing", "its script did not run"
        assert server.requested
        assert not [request for request in server.requested if COOKIE in request]

    assert count_keys(alice) == keys
    page.goto(f"{service.url}/login")
    page.wait_for_selector(".who")  # still signed in

    # The control: loaded from its own server, as in the past, the page runs its script, and the server gets the login.
    del server.requested[:]
    page.goto(f"{server.url}/page")
    page.wait_for_function("document.title != 'nothing'")
    assert COOKIE in server.requested[0]


def test_pages_of_the_service_can_not_be_framed(service: Deployment, alice: Client, page: Page) -> None:
    sign_in(page, service, alice)
    with hostile(answering(b"<!doctype html>", Content_Type="text/html")) as other:
        urls = (f"{service.url}/docs", f"{service.url}/login", f"{other.url}/page")
        frames = "".join(f'<iframe src="{url}"></iframe>' for url in urls)
        with hostile(answering(f"<!doctype html>{frames}".encode(), Content_Type="text/html")) as server:
            page.goto(server.url)
            page.wait_for_load_state("networkidle")
            # The control: a page that may be framed is there.
            assert [frame.url for frame in page.frames if frame.url in urls] == [f"{other.url}/page"]
            assert len(page.frames) == 4
            assert [frame.url for frame in page.frames if frame.url.startswith(service.url)] == []


def sign_in(page: Page, service: Deployment, user: Client) -> None:
    page.goto(f"{service.url}/login")
    page.fill('[name="api_key"]', user.user.key)
    page.click("button")
    page.wait_for_url(f"{service.url}/")


def count_keys(user: Client) -> int:
    response = user.get("/api/keys")
    assert response.status_code == 200
    return len(response.json())
