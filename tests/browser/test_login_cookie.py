"""Browsers send the login cookie to all ports of the API's host, so that no sandbox may use that host."""

import pytest
from playwright.sync_api import Page

from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.hostile_server import answering, hostile
from worker.settings import WorkerSettings

COOKIE = b"aw_session="


@pytest.fixture
def service(installed: Deployment) -> Deployment:
    """The service's API without sandboxes."""
    installed.prepare()
    installed.start_api()
    return installed


def test_following_a_link_to_a_sandbox_does_not_send_the_login(service: Deployment, alice: Client, page: Page) -> None:
    page.goto(f"{service.url}/login")
    page.fill('[name="api_key"]', alice.person.key)
    page.click("button")
    page.wait_for_url(f"{service.url}/")
    page.goto(f"{service.url}/login")
    page.wait_for_selector(".who")
    seen = {host: follow(page, host) for host in ("127.0.0.1", WorkerSettings().node_address)}
    assert [COOKIE in request for request in seen.values()] == [True, False], "the first is the service's own host"


def follow(page: Page, host: str) -> bytes:
    """Follow a link to a server of that host, and return the request that it receives."""
    with hostile(answering({}), host) as server:
        page.evaluate("url => { location.href = url }", server.url)
        page.wait_for_url(f"{server.url}/")
        return server.asked[0]
