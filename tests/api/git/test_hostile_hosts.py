"""A hostile git host of a user exhausts neither the memory nor the time of an API process."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest

from api.errors.upstream import UpstreamUnreachable
from api.git import azure_devops, bitbucket
from api.git.bitbucket import MAX_REQUESTS
from api.git.http_client import GitClient
from api.git.provider import MAX_ITEMS
from api.schemas.v1.git import Repository
from shared.errors import WorkspaceError
from tests.factories import ApiUser
from tests.fakes.git_host import FakeGitHost
from tests.fakes.git_requests import GitRequest, Reply
from tests.services.authority import Authority, breaking_tls
from tests.services.hostile_responses import RESPONSES, sending
from tests.services.hostile_server import MODES, hostile

Ask = Callable[..., Any]


@pytest.mark.parametrize("mode", ["floods", "inflates", "crumbles", "promises", "large header"])
def test_endless_response_is_refused(mode: str) -> None:
    async def run(url: str) -> None:
        client = GitClient(frozenset({urlsplit(url).netloc}))
        with pytest.raises(UpstreamUnreachable):
            await client.request("github", "GET", url)
        await client.close()

    with hostile(MODES[mode]) as server:
        asyncio.run(run(server.url))


@pytest.mark.parametrize("response", RESPONSES)
def test_malformed_response_is_an_error_of_the_api(response: str) -> None:
    with hostile(sending(response)) as server, pytest.raises(WorkspaceError):
        asyncio.run(search(server.url))


def test_host_with_an_invalid_name_is_unreachable() -> None:
    for name in ("http://xn--/", f"http://{'a' * 70}.com/"):
        with pytest.raises(UpstreamUnreachable):
            asyncio.run(search(name))


@pytest.mark.parametrize("record", [b"\x17\x03\x03\x00\x20" + b"x" * 32, b"no record"])
def test_host_with_broken_tls_is_unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: bytes) -> None:
    authority = Authority(tmp_path, "any")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority.file)
    monkeypatch.setattr("ssl.create_default_context", lambda: context)
    with breaking_tls(authority, record) as url, pytest.raises(UpstreamUnreachable):
        asyncio.run(search(url))


async def search(url: str) -> None:
    """Send a request that needs a document."""
    client = GitClient(frozenset({urlsplit(url).netloc}))
    try:
        (await client.request("github", "GET", url)).require_document()
    finally:
        await client.close()


@pytest.fixture
def empty_workspaces(connect: Ask, user: ApiUser, git_host: FakeGitHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's host that lists more workspaces than requested, each of which has two empty pages."""

    def respond(request: GitRequest) -> Reply:
        listed = [{"slug": f"w{number}"} for number in range(3 * MAX_REQUESTS)]
        next_page = {"next": "https://next"} if request.query["page"] == "1" else {}
        return 200, {}, {"values": listed if request.path.endswith("/user/workspaces") else [], **next_page}

    monkeypatch.setattr(git_host, "respond", respond)
    connect(user, "bitbucket")


@pytest.mark.usefixtures("empty_workspaces")
def test_search_sends_a_limited_number_of_requests(send: Ask, user: ApiUser, git_host: FakeGitHost) -> None:
    response = send(user, "repositories", provider="bitbucket")
    assert (response.status_code, response.json()["items"]) == (200, [])
    assert len(git_host.got) == 1 + MAX_REQUESTS


@pytest.mark.usefixtures("empty_workspaces")
def test_search_of_slow_workspaces_ends_in_time(
    send: Ask, user: ApiUser, git_host: FakeGitHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bitbucket, "SEARCH_SECONDS", 0.3)
    git_host.delay_seconds = 0.1
    assert send(user, "repositories", provider="bitbucket", query="app").status_code == 504
    assert len(git_host.got) < 10


@pytest.mark.parametrize("provider", ["github", "gitlab", "forgejo"])
def test_list_that_is_longer_than_any_page_is_a_502(
    connect: Ask, send: Ask, user: ApiUser, git_host: FakeGitHost, provider: str
) -> None:
    connect(user, provider)
    git_host.instead = (200, {}, [{}] * (MAX_ITEMS + 1))
    response = send(user, "branches", provider=provider, repository="acme/app", query="", limit=1)
    assert (response.status_code, f"more than {MAX_ITEMS} items" in response.json()["detail"]) == (502, True)


def test_page_of_many_repositories_converts_the_returned_ones_only(
    connect: Ask, send: Ask, user: ApiUser, git_host: FakeGitHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Mock(side_effect=Repository)
    monkeypatch.setattr(azure_devops, "Repository", make)
    connect(user, "azure_devops")
    names = [f"app{number:05}" for number in range(2 * MAX_ITEMS)]
    listed = [{"id": name, "name": name, "project": {"name": "shop"}} for name in names]
    git_host.instead = (200, {}, {"value": listed})
    [found] = send(user, "repositories", provider="azure_devops", query="app01", limit=1).json()["items"]
    assert (found["full_name"], make.call_count) == ("acme/shop/app01000", 1)
