"""A hostile git host of a user exhausts neither the memory nor the time of an API process."""

import asyncio
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from api.errors.upstream import UpstreamUnreachable
from api.git.http_client import GitClient
from shared.errors import WorkspaceError
from tests.services.authority import Authority, breaking_tls
from tests.services.hostile_responses import RESPONSES, sending
from tests.services.hostile_server import MODES, hostile


@pytest.mark.parametrize("mode", ["floods", "inflates", "crumbles", "promises", "large header"])
def test_response_without_bounds_is_refused(mode: str) -> None:
    async def run(url: str) -> None:
        client = GitClient(frozenset({urlsplit(url).netloc}))
        with pytest.raises(UpstreamUnreachable):
            await client.request("github", "GET", url)
        await client.close()

    with hostile(MODES[mode]) as server:
        asyncio.run(run(server.url))


@pytest.mark.parametrize("response", RESPONSES)
def test_response_that_no_honest_host_sends_is_an_error_of_the_api(response: str) -> None:
    with hostile(sending(response)) as server, pytest.raises(WorkspaceError):
        asyncio.run(search(server.url))


def test_host_whose_name_is_none_is_unreached() -> None:
    for name in ("http://xn--/", f"http://{'a' * 70}.com/"):
        with pytest.raises(UpstreamUnreachable):
            asyncio.run(search(name))


@pytest.mark.parametrize("record", [b"\x17\x03\x03\x00\x20" + b"x" * 32, b"no record"])
def test_broken_tls_is_unreached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: bytes) -> None:
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
